

#include "profiler/profile.h"
#include "support/busy_machine.h"
#include "support/each_step.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

/// Groups whose profiled steps take `extra[i]` longer, on a machine that slows down steadily.
std::vector<double> steps_with(const std::vector<double>& extra) {
  std::vector<double> wall_s;
  for (const double each : extra) {
    for (int i = 0; i < 4; ++i) {
      const auto index = static_cast<std::int64_t>(wall_s.size());
      const double drift = 1e-6 * static_cast<double>(index);
      wall_s.push_back(1e-3 + drift + (is_profiled_for_overhead(index) ? each : 0));
    }
  }
  return wall_s;
}

TEST(Overhead, AlternatesWithoutWithWithWithout) {
  const std::vector<bool> pattern{false, true, true, false, false, true, true, false};
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    EXPECT_EQ(is_profiled_for_overhead(static_cast<std::int64_t>(i)), pattern[i]);
  }
}

TEST(Overhead, IsTheMedianOfTheGroupsWhateverTheDrift) {
  const Overhead overhead = overhead_of(steps_with({5e-6, 1e-6, 2e-6}));
  EXPECT_EQ(overhead.groups, 3);
  EXPECT_NEAR(overhead.median_s, 2e-6, 1e-12);
  EXPECT_FALSE(overhead.is_95);
  EXPECT_NEAR(overhead.low_s, 1e-6, 1e-12);
  EXPECT_NEAR(overhead.high_s, 5e-6, 1e-12);
}

/// Ranks of the median's interval: 1 and 6 of 6, 2 and 9 of 10, 6 and 15 of 20, 14 and 27 of 40
/// (tables of order statistics, e.g. Conover, Practical Nonparametric Statistics).
TEST(Overhead, HasTheIntervalOfOrderStatistics) {
  for (const auto& [groups, low, high] :
       {std::tuple{6, 1, 6}, {10, 2, 9}, {20, 6, 15}, {40, 14, 27}}) {
    std::vector<double> extra;
    for (int i = 1; i <= groups; ++i) extra.push_back(1e-6 * i);
    const Overhead overhead = overhead_of(steps_with(extra));
    EXPECT_TRUE(overhead.is_95);
    EXPECT_NEAR(overhead.low_s, 1e-6 * low, 1e-12) << groups;
    EXPECT_NEAR(overhead.high_s, 1e-6 * high, 1e-12) << groups;
  }
}

/// CUPTI is turned on once; the plain steps nearest to that are compared.
TEST(Overhead, IsThatOfPairsIfProfilingIsTurnedOnOnce) {
  const std::vector<double> plain{9, 1e-3, 2e-3, 3e-3};
  const std::vector<double> profiled{1.1e-3, 2.3e-3, 3.2e-3};
  const Overhead overhead = overhead_of(plain, profiled);
  EXPECT_EQ(overhead.groups, 3);
  EXPECT_NEAR(overhead.plain_s, 2e-3, 1e-12);
  EXPECT_NEAR(overhead.median_s, 2e-4, 1e-12);
  EXPECT_THAT(overhead_text(overhead), HasSubstr(", 3 pairs of steps without and with)."));
  EXPECT_EQ(overhead_of(plain, std::vector<double>()).groups, 0);
}

TEST(Overhead, IsOneSentence) {
  EXPECT_THAT(overhead_text(overhead_of(steps_with({2e-6}))),
              HasSubstr("Profiling adds 2.000us to a step of 1.002ms, 0.20 % (too few for an "
                        "interval; range 2.000us to 2.000us, 1 group of steps"));
  EXPECT_THAT(overhead_text(overhead_of(steps_with({-3e-6, 1e-6, 2e-6, 3e-6, 4e-6, 5e-6}))),
              HasSubstr("(95 % interval -3.000us to 5.000us, 6 groups of steps without, with, "
                        "with, without).\n"));
  EXPECT_THAT(
      overhead_text(overhead_of(std::vector<double>(3, 1e-3))),
      HasSubstr("is unknown: measuring it takes four steps after warm-up that are not profiled"));
}

/// Steps of 1024 x 2, in groups of four.
Overhead measured_overhead() {
  TrainConfig config;
  config.model.dim = 1024;
  config.model.depth = 2;
  config.training.steps = 4 + 4 * 15;
  TrainerHarness run(config);
  ByNodes profiler(&is_profiled_for_overhead);
  Trainer trainer(run.config, *run.programs, {run.device.get()}, {}, nullptr, {}, &profiler);
  ProfiledSteps kept(1, parts_of(run.programs->train().program), 1000);
  run.after_step = [&](const StepReport& report) {
    if (!is_profiled_for_overhead(report.step)) return;
    kept.clear();
    kept.add(report.step, *report.timeline, 0);
  };
  trainer.run(run);
  std::vector<double> wall_s;
  for (const StepReport& report : run.steps) {
    if (report.step >= 4) wall_s.push_back(report.wall_s);
  }
  return overhead_of(wall_s);
}

/// Fails only if the result is certain.
TEST(Overhead, IsBelowThreePercentOfAStepOf1024x2) {
  repeat_while_busy([] {
    const Overhead overhead = measured_overhead();
    EXPECT_TRUE(overhead.is_95);
    EXPECT_LT(overhead.low_s, 0.03 * overhead.plain_s) << overhead_text(overhead);
  });
}

}  // namespace
}  // namespace barestep
