// Training with units that no longer learn: their moments decay until they are denormal.

#include "support/busy_machine.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

/// With this rate all units are dead after a few steps: whatever the input, they return 0.
TrainConfig dying_run(std::int64_t dim, std::int64_t steps) {
  TrainConfig config;
  config.model.dim = dim;
  config.model.depth = 3;
  config.data.batch_size = 16;
  config.training.steps = steps;
  config.optimizer.lr = 0.5;
  config.device.threads = 2;
  return config;
}

struct DeadRun {
  std::vector<float> losses;
  FlatWeights weights;
  std::size_t denormals = 0, numbers = 0;  // of the optimizer's state
};

DeadRun trained(TrainConfig config, Denormals denormals) {
  config.device.denormals = denormals;
  TrainerHarness run(config);
  run.run();
  DeadRun result{.losses = run.losses(), .weights = run.trainer->weights()};
  for (const BufferId buffer : run.programs->optimizer_state()) {
    const FlatWeights state = run.trainer->download(buffer);
    const auto is_denormal = [](float x) { return std::fpclassify(x) == FP_SUBNORMAL; };
    result.denormals += static_cast<std::size_t>(std::ranges::count_if(state, is_denormal));
    result.numbers += state.size();
  }
  return result;
}

/// Other processors flush nothing.
class DeadUnits : public testing::Test {
 protected:
  void SetUp() override {
#if !defined(__x86_64__) && !defined(__aarch64__)
    GTEST_SKIP() << "this processor flushes nothing";
#endif
  }
};

/// 0.9^n falls below 2^-126 after 829 steps at most.
TEST_F(DeadUnits, HaveDenormalMomentsOnlyWhereTheyAreKept) {
  for (const Update update : {Update::kSeparate, Update::kFused}) {
    SCOPED_TRACE(name_of(update));
    TrainConfig config = dying_run(32, 1200);
    config.training.update = update;
    const DeadRun kept = trained(config, Denormals::kKeep);
    const DeadRun flushed = trained(config, Denormals::kFlush);
    EXPECT_GT(kept.denormals, kept.numbers / 4) << "of " << kept.numbers;
    EXPECT_EQ(flushed.denormals, 0U);
    EXPECT_EQ(flushed.losses, kept.losses);
    EXPECT_EQ(flushed.weights, kept.weights);
  }
}

/// Lion's step has the sign of a moment, however small it is. The smallest number times 0.6 rounds
/// to itself.
TEST_F(DeadUnits, StandStillWithLionOnlyWhereDenormalsAreFlushed) {
  TrainConfig config = dying_run(32, 400);
  config.optimizer.kind = OptimizerKind::kLion;
  config.optimizer.beta2 = 0.6;
  const auto moved = [&](Denormals denormals) {
    config.training.steps = 400;
    const FlatWeights before = trained(config, denormals).weights;
    config.training.steps = 401;
    const FlatWeights after = trained(config, denormals).weights;
    std::size_t others = 0;
    for (std::size_t i = 0; i < after.size(); ++i) others += after[i] != before[i] ? 1 : 0;
    return others;
  };
  EXPECT_EQ(moved(Denormals::kFlush), 0U);
  EXPECT_GT(moved(Denormals::kKeep), 0U);
}

/// The median of the step times in this range.
double median_step_s(const std::vector<StepReport>& steps, std::size_t first, std::size_t end) {
  std::vector<double> wall_s;
  for (std::size_t i = first; i < end; ++i) wall_s.push_back(steps[i].wall_s);
  std::ranges::nth_element(wall_s, wall_s.begin() + std::ssize(wall_s) / 2);
  return wall_s[wall_s.size() / 2];
}

/// Kept denormals make these steps 1.25 to 1.5 times as long on an AMD EPYC.
TEST_F(DeadUnits, TakeAsLongAsOthers) {
  repeat_while_busy([] {
    TrainConfig config = dying_run(512, 1400);
    config.training.update = Update::kFused;
    TrainerHarness run(config);
    run.run();
    EXPECT_LT(median_step_s(run.steps, 1100, 1400), 1.2 * median_step_s(run.steps, 100, 400));
  });
}

}  // namespace
}  // namespace barestep
