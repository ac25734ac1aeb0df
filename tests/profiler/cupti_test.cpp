// Loading CUPTI, and the messages if it is not available.

#include "profiler/cupti_fixture.h"
#include "support/expect_error.h"
#include "support/testing.h"

namespace barestep {

std::string fake_cupti_file() {
  return FAKE_CUPTI;
}

namespace {

TEST_F(Cupti, ThatIsAbsentOrAnotherLibrarySaysSo) {
  EXPECT_THAT(why_not({"/nowhere/libcupti.so"}),
              HasSubstr("/nowhere/libcupti.so: cannot open shared object file"));
  EXPECT_THAT(why_not({FAKE_NVML}), EndsWith("has no cuptiGetVersion"));
  // The next file may contain it.
  EXPECT_EQ(why_not({"/nowhere/libcupti.so", FAKE_CUPTI}), "");
}

TEST_F(Cupti, IsLookedForWhereTheVariableSays) {
  ::setenv("BARESTEP_CUPTI", "/my/libcupti.so", 1);
  EXPECT_THAT(cupti_files(), ElementsAre("/my/libcupti.so"));
  ::unsetenv("BARESTEP_CUPTI");
  EXPECT_EQ(cupti_files().front(), "libcupti.so.13");
}

TEST_F(Cupti, ThatIsTooOldSaysSo) {
  fake().version = 17;
  EXPECT_THAT(why_not(), EndsWith(" is of API 17, which is older than CUDA 12"));
  fake().version = 18;
  open();
  EXPECT_EQ(source().source(), "CUPTI API 18");
}

TEST_F(Cupti, ThatRefusesSaysWhy) {
  const std::vector<std::tuple<std::string, CUptiResult, std::string>> cases = {
      {"cuptiGetVersion", CUPTI_ERROR_UNKNOWN, "CUPTI_ERROR_UNKNOWN (999)"},
      {"cuptiSubscribe", CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED,
       "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39), another profiler or debugger is "
       "attached"},
      {"cuptiSubscribe", CUPTI_ERROR_NOT_INITIALIZED,
       "CUPTI_ERROR_NOT_INITIALIZED (15), CUDA cannot be used here"},
      {"cuptiActivityRegisterCallbacks", CUPTI_ERROR_UNKNOWN, "CUPTI_ERROR_UNKNOWN (999)"},
      {"cuptiEnableCallback", CUPTI_ERROR_INVALID_PARAMETER, "unknown (1)"},
  };
  for (const auto& [function, status, text] : cases) {
    fake().status = {{function, status}};
    EXPECT_EQ(why_not(), function + " failed: " + text);
    EXPECT_FALSE(fake().is_subscribed) << function;
    EXPECT_TRUE(fake().enabled.empty()) << function;
  }
  fake().status.clear();
  EXPECT_EQ(why_not(), "");
}

/// As first released with CUDA 13.0.
TEST_F(Cupti, ThatHangsAndCrashesIsRefusedByName) {
  fake().version = 130000;
  EXPECT_THAT(why_not(), EndsWith(" is 13.0.0, which hangs and crashes; 13.0.1 does not"));
  fake().version = 130001;
  EXPECT_EQ(why_not(), "");
}

TEST_F(Cupti, ThatRefusesToRecordSaysWhyAndIsOff) {
  const std::vector<std::tuple<std::string, CUptiResult, std::string>> cases = {
      {"cuptiActivityEnable", CUPTI_ERROR_INSUFFICIENT_PRIVILEGES,
       "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35), the driver lets only administrators profile"},
      {"cuptiGetTimestamp", CUPTI_ERROR_UNKNOWN, "CUPTI_ERROR_UNKNOWN (999)"},
  };
  for (const auto& [function, status, text] : cases) {
    gpu_records_.reset();
    *fake_ = {};
    open();
    fake().status = {{function, status}};
    EXPECT_EQ(source().turn(true, true), function + " failed: " + text);
    EXPECT_TRUE(fake().enabled.empty()) << function;
  }
}

TEST_F(Cupti, ServesOneProfilerOfAProcess) {
  open();
  std::string why;
  EXPECT_EQ(open_cupti({&first_}, 10, {FAKE_CUPTI}, why), nullptr);
  EXPECT_EQ(why, "this process is already being profiled");
}

TEST_F(Cupti, IsEnabledForTheProfiledStepsOnly) {
  open();
  EXPECT_TRUE(fake().enabled.empty());
  queue(1);
  EXPECT_TRUE(fake().pushed.empty());
  turn_on();
  EXPECT_THAT(fake().enabled, SizeIs(8));
  EXPECT_TRUE(fake().enabled.contains(CUPTI_ACTIVITY_KIND_OVERHEAD));
  // The kind that would serialize kernels.
  EXPECT_FALSE(fake().enabled.contains(CUPTI_ACTIVITY_KIND_KERNEL));
  EXPECT_EQ(source().turn(false, false), "");
  EXPECT_TRUE(fake().enabled.empty());
  // A second session would have wrong correlations.
  expect_error(ExitCode::kBug, "records are enabled once",
               [&] { static_cast<void>(source().turn(true, true)); });
}

TEST_F(Cupti, ThatFailsLaterSaysSoAndLosesNoRun) {
  open();
  turn_on();
  fake().status["cuptiActivityFlushAll"] = CUPTI_ERROR_UNKNOWN;
  source().finish();
  EXPECT_EQ(source().source(),
            "CUPTI 13.0.1, but cuptiActivityFlushAll failed: CUPTI_ERROR_UNKNOWN (999)");
  fake().status.clear();
  for (const char* function :
       {"cuptiActivityPushExternalCorrelationId", "cuptiActivityPopExternalCorrelationId",
        "cuptiActivityGetNextRecord"}) {
    gpu_records_.reset();
    *fake_ = {};
    open();
    turn_on();
    fake().status[function] = CUPTI_ERROR_UNKNOWN;
    queue(1);
    add_kernel(50, 10, 20);
    source().finish();
    EXPECT_THAT(source().source(), HasSubstr(std::string(", but ") + function + " failed: "));
    static_cast<void>(source().turn(false, false));
  }
}

/// The clocks drift apart by 30 ms, so a kernel in the middle was converted wrongly by half of
/// that.
TEST_F(Cupti, ConvertsToTheHostsTimeEvenIfTheClocksDrift) {
  open();
  turn_on();
  const double begin_s = zero_s_;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  fake().ahead_ns += 15'000'000;
  start_here();
  const double middle_s = zero_s_;
  add_kernel(50, 1, 1001);
  std::this_thread::sleep_for(std::chrono::duration<double>(middle_s - begin_s));
  fake().ahead_ns += 15'000'000;
  source().finish();
  ASSERT_THAT(source().activities(), SizeIs(1));
  EXPECT_NEAR(source().activities()[0].start_s, middle_s, 5e-3);
}

/// NVIDIA's own library, with or without a driver: it is found, and the reason is given if it is
/// unusable.
TEST(GpuSource, GetsOnWithTheRealLibrary) {
  const auto cpu = make_cpu_device({.threads = 1});
  Gpu gpu(*cpu, 0, 0);
  std::string why;
  const auto source = open_cupti({&gpu}, 10, cupti_files(), why);
  if (why.find("cannot open shared object file") != std::string::npos) {
    GTEST_SKIP() << "CUPTI is not installed";
  }
  EXPECT_EQ(source == nullptr, !why.empty());
  if (source == nullptr) {
    EXPECT_THAT(why, HasSubstr(" failed: "));
  }
}

}  // namespace
}  // namespace barestep
