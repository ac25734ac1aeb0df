#include "run_end.h"

#include <gtest/gtest.h>

#include <string>

namespace barestep {
namespace {

[[noreturn]] void fail_at(const char* what, ExitCode code = ExitCode::kInputOutput) {
  fail(code, {.what = what, .why = "full"});
}

TEST(FirstFailure, OfOutputsIsReturnedWhenAllWorkIsDone) {
  std::string done;
  ::testing::internal::CaptureStderr();
  const auto failure = first_failure("mlp_test", {[&] { done += "a"; },
                                                  [] { fail_at("weights"); },
                                                  {},
                                                  [] { fail_at("trace"); },
                                                  [&] { done += "b"; }});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "mlp_test: note: trace: full\n");
  EXPECT_EQ(done, "ab");
  ASSERT_TRUE(failure);
  EXPECT_STREQ(failure->what(), "weights: full");
  EXPECT_EQ(first_failure("mlp_test", {[] {}}), std::nullopt);
}

TEST(FirstFailure, OfAnythingElseIsThrownAtOnce) {
  bool goes_on = false;
  const auto work = [&] {
    first_failure("mlp_test",
                  {[] { fail_at("rank", ExitCode::kTryAgain); }, [&] { goes_on = true; }});
  };
  EXPECT_THROW(work(), Error);
  EXPECT_FALSE(goes_on);
}

}  // namespace
}  // namespace barestep
