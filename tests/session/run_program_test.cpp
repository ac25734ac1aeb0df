#include "session/run_program.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <stdexcept>
#include <system_error>

#include "core/error.h"

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
  const Outcome outcome = outcome_of([](const auto&) {
    fail(ExitCode::kBadData, {.what = "file", .value = "a\nb", .why = "cut", .remedy = "mend it"});
  });
  EXPECT_EQ(outcome.code, 65);
  EXPECT_EQ(outcome.err, "mlp_test: error: file 'a b': cut; mend it\n");
}

TEST(RunProgram, CallsLackOfMemoryByItsName) {
  const Outcome outcome = outcome_of([](const auto&) { throw std::bad_alloc(); });
  EXPECT_EQ(outcome.code, 71);
  EXPECT_EQ(outcome.err,
            "mlp_test: error: memory: this machine has no more; use a smaller model or "
            "batch\n");
}

/// As std::thread says it.
TEST(RunProgram, CallsLackOfThreadsByItsName) {
  const Outcome outcome = outcome_of([](const auto&) {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  });
  EXPECT_EQ(outcome.code, 71);
  EXPECT_EQ(outcome.err,
            "mlp_test: error: threads: the system allows no more; allow more processes (ulimit "
            "-u), or give smaller --threads and --workers\n");
}

TEST(RunProgram, CallsOtherExceptionsBugs) {
  const Outcome known = outcome_of([](const auto&) { throw std::logic_error("x > y"); });
  EXPECT_EQ(known.code, 70);
  EXPECT_EQ(known.err, "mlp_test: error: unexpected: x > y; this is a bug, please report it\n");
  const Outcome unknown = outcome_of([](const auto&) { throw 3; });
  EXPECT_EQ(unknown.code, 70);
  EXPECT_EQ(unknown.err,
            "mlp_test: error: unexpected: an exception of no known type; this is a bug, please "
            "report it\n");
}

TEST(RunProgram, CallsOtherSystemErrorsInputOutput) {
  const Outcome outcome = outcome_of(
      [](const auto&) { throw std::system_error(EMFILE, std::generic_category(), "log"); });
  EXPECT_EQ(outcome.code, 74);
  EXPECT_EQ(outcome.err, "mlp_test: error: system: log: Too many open files\n");
}

TEST(RunProgram, NamesTheFileOfAFilesystemErrorWithoutTheLibrarysWords) {
  const Outcome outcome =
      outcome_of([](const auto&) { std::filesystem::copy_file("/nowhere/a", "/nowhere/b"); });
  EXPECT_EQ(outcome.code, 74);
  EXPECT_EQ(outcome.err,
            "mlp_test: error: file '/nowhere/a': No such file or directory; check the path\n");
}

TEST(RunProgram, ReadingAFolderAsAFileIsReportedWithoutTheLibrarysWords) {
  const Outcome outcome = outcome_of([](const auto&) {
    std::ifstream folder("/");
    const std::string text{std::istreambuf_iterator<char>(folder), {}};
  });
  EXPECT_EQ(outcome.code, 74);
  EXPECT_EQ(outcome.err, "mlp_test: error: file: Is a directory; check the files of this run\n");
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
