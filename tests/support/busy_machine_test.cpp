#include "support/busy_machine.h"

#include <gtest/gtest-spi.h>

#include "support/testing.h"

namespace barestep {
namespace {

constexpr double kNeverBusy = 2;
constexpr double kAlwaysBusy = -1;

TEST(RepeatWhileBusy, EndsWithTheFirstAttemptInWhichNothingFails) {
  int attempts = 0;
  repeat_while_busy([&] { EXPECT_EQ(++attempts, 3); }, kNeverBusy);
  EXPECT_EQ(attempts, 3);
}

TEST(RepeatWhileBusy, FailsAsTheLastAttemptOnAQuietMachine) {
  static int attempts = 0;
  EXPECT_NONFATAL_FAILURE_ON_ALL_THREADS(
      repeat_while_busy([] { ADD_FAILURE() << "attempt " << ++attempts; }, kNeverBusy),
      "attempt 10");
  EXPECT_EQ(attempts, 10);
}

TEST(RepeatWhileBusy, SkipsWithTheFigureOnABusyMachine) {
  using Reporter = testing::ScopedFakeTestPartResultReporter;
  testing::TestPartResultArray results;
  {
    const Reporter reporter(Reporter::INTERCEPT_ALL_THREADS, &results);
    repeat_while_busy([] { FAIL() << "7 s are too long"; }, kAlwaysBusy);
  }
  ASSERT_EQ(results.size(), 1);
  EXPECT_TRUE(results.GetTestPartResult(0).skipped());
  const std::string message = results.GetTestPartResult(0).message();
  EXPECT_NE(message.find(" % of the cores: "), std::string::npos) << message;
  EXPECT_NE(message.find("7 s are too long"), std::string::npos) << message;
}

TEST(RepeatWhileBusy, HearsOfFailuresOnAllThreads) {
  int attempts = 0;
  repeat_while_busy(
      [&] {
        ++attempts;
        std::thread([&] { EXPECT_EQ(attempts, 2); }).join();
      },
      kNeverBusy);
  EXPECT_EQ(attempts, 2);
}

}  // namespace
}  // namespace barestep
