#include "session/run_program.h"

#include <new>
#include <system_error>

#include "core/error.h"
#include "support/testing.h"

namespace barestep {
namespace {

struct Outcome {
  int code;
  std::string err;
};

Outcome outcome_of(const std::function<void(const std::vector<std::string>&)>& body) {
  const char* const arguments[] = {"anything", "--dim", "8", nullptr};
  ::testing::internal::CaptureStderr();
  const int code = run_program("mlp_test", 3, arguments, body);
  return {code, ::testing::internal::GetCapturedStderr()};
}

TEST(RunProgram, HandsOverTheArgumentsAndReturnsZero) {
  std::vector<std::string> seen;
  const Outcome outcome = outcome_of([&](const auto& arguments) { seen = arguments; });
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(seen, (std::vector<std::string>{"--dim", "8"}));
}

TEST(RunProgram, SurvivesAnEmptyArgumentVector) {
  const char* const none[] = {nullptr};
  EXPECT_EQ(run_program("mlp_test", 0, none, [](const auto& a) { EXPECT_TRUE(a.empty()); }), 0);
}

TEST(RunProgram, PrintsAnErrorAsOneLineAndExitsWithItsCode) {
  struct Case {
    std::function<void()> body;
    int code;
    std::string line;
  };
  const Case cases[] = {
      {[] {
         fail(ExitCode::kBadData,
              {.what = "file", .value = "a\nb", .why = "cut", .remedy = "mend it"});
       },
       65, "file 'a b': cut; mend it"},
      {[] { throw std::bad_alloc(); }, 71,
       "memory: this machine has no more; use a smaller model or batch"},
      // As std::thread says that there are no more.
      {[] {
         throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
       },
       71,
       "threads: the system allows no more; allow more processes (ulimit -u), or give smaller "
       "--threads and --workers"},
      {[] { throw std::logic_error("x > y"); }, 70,
       "unexpected: x > y; this is a bug, please report it"},
      {[] { throw 3; }, 70,
       "unexpected: an exception of no known type; this is a bug, please report it"},
      {[] { throw std::system_error(EMFILE, std::generic_category(), "log"); }, 74,
       "system: log: Too many open files"},
      {[] { std::filesystem::copy_file("/nowhere/a", "/nowhere/b"); }, 74,
       "file '/nowhere/a': No such file or directory; check the path"},
      {[] {
         std::ifstream folder("/");
         const std::string text{std::istreambuf_iterator<char>(folder), {}};
       },
       74, "file: Is a directory; check the files of this run"},
  };
  for (const auto& [body, code, line] : cases) {
    const Outcome outcome = outcome_of([&body = body](const auto&) { body(); });
    EXPECT_EQ(outcome.code, code) << line;
    EXPECT_EQ(outcome.err, "mlp_test: error: " + line + "\n");
  }
}

[[noreturn]] void fail_at(const char* what, ExitCode code = ExitCode::kInputOutput) {
  fail(code, {.what = what, .why = "full"});
}

using Tasks = std::vector<std::function<void()>>;

TEST(FirstFailure, OfOutputsIsReturnedWhenAllWorkIsDone) {
  std::string done;
  const Tasks tasks = {[&] { done += "a"; }, [] { fail_at("weights"); }, [] { fail_at("trace"); },
                       [&] { done += "b"; }};
  ::testing::internal::CaptureStderr();
  const auto failure = first_failure("mlp_test", tasks);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "mlp_test: note: trace: full\n");
  EXPECT_EQ(done, "ab");
  ASSERT_TRUE(failure);
  EXPECT_STREQ(failure->what(), "weights: full");
  EXPECT_EQ(first_failure("mlp_test", Tasks{[] {}}), std::nullopt);
}

TEST(FirstFailure, OfAnythingElseIsThrownAtOnce) {
  bool goes_on = false;
  const Tasks tasks = {[] { fail_at("rank", ExitCode::kTryAgain); }, [&] { goes_on = true; }};
  EXPECT_THROW(first_failure("mlp_test", tasks), Error);
  EXPECT_FALSE(goes_on);
}

}  // namespace
}  // namespace barestep
