#include "core/config.h"

#include "support/expect_error.h"
#include "support/testing.h"

namespace barestep {
namespace {

TEST(WidthsOf, ComesFromLayersOrFromDimAndDepth) {
  using Widths = std::vector<std::int64_t>;
  EXPECT_EQ(widths_of({}, 3), (Widths(7, 3)));
  EXPECT_EQ(widths_of({.dim = 5, .depth = 1}, 3), (Widths{5, 5}));
  EXPECT_EQ(widths_of({.layers = {7, 8, 9}}, 3), (Widths{7, 8, 9}));
}

TEST(WarmupOf, ShrinksUnlessItWasAskedFor) {
  EXPECT_EQ(warmup_of({}, 20), 5);
  EXPECT_EQ(warmup_of({}, 3), 2);
  EXPECT_EQ(warmup_of({}, 1), 0);
  EXPECT_EQ(warmup_of({.warmup = 0}, 20), 0);
  EXPECT_EQ(warmup_of({.warmup = 19}, 20), 19);
  expect_error(ExitCode::kConfiguration,
               "--warmup '20': the run has 20 steps, and none would be left to measure; "
               "--warmup 19 or --steps 21 fits",
               [] { warmup_of({.warmup = 20}, 20); });
}

TEST(ProfiledStepsOf, AreTheLastHalfBehindWarmUpUnlessOthersWereAskedFor) {
  using Steps = std::pair<std::int64_t, std::int64_t>;
  const auto steps_of = [](const TrainConfig& config, std::int64_t steps) {
    const StepRange range = profiled_steps_of(config, steps);
    return Steps(range.first, range.end);
  };
  TrainConfig config;
  EXPECT_EQ(steps_of(config, 20), Steps(12, 20));
  EXPECT_EQ(steps_of(config, 1), Steps(0, 1));
  EXPECT_EQ(steps_of(config, 1000), Steps(950, 1000));
  config.output.profile_steps = StepRange{3, 7};
  EXPECT_EQ(steps_of(config, 20), Steps(3, 7));
  EXPECT_EQ(steps_of(config, 7), Steps(3, 7));
  expect_error(
      ExitCode::kConfiguration,
      "--profile-steps '3:7': the run has the steps 0 to 5; 3:6 fits, or give more --steps",
      [&] { profiled_steps_of(config, 6); });
}

TEST(DeviceName, IsAutoCpuOrCudaWithANumber) {
  for (const char* name : {"auto", "cpu", "cuda", "cuda:0", "cuda:12"}) {
    EXPECT_TRUE(is_device_name(name)) << name;
  }
  for (const char* name : {"", "gpu", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:1234", "CPU"}) {
    EXPECT_FALSE(is_device_name(name)) << name;
  }
}

}  // namespace
}  // namespace barestep
