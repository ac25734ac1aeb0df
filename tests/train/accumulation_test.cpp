// Gradient accumulation and injected delays; the programs of every optimizer are ordered.

#include "profiler/account.h"
#include "support/near.h"
#include "support/rank_run.h"
#include "support/testing.h"
#include "support/trainer_harness.h"
#include "train/step.h"

namespace barestep {
namespace {

TrainConfig small(std::int64_t batch_size, std::int64_t accumulate) {
  TrainConfig config;
  config.model.layers = {24, 40, 16};
  config.data.batch_size = batch_size;
  config.training.steps = 5;
  config.training.accumulate = accumulate;
  config.device.threads = 2;
  return config;
}

TEST(Accumulation, EqualsTheLargerBatch) {
  for (const bool zero_grad : {true, false}) {
    TrainConfig whole = small(24, 1);
    whole.training.zero_grad = zero_grad;
    const Trained expected = train_single(whole);
    for (const std::int64_t accumulate : {2, 3, 8}) {
      SCOPED_TRACE(accumulate);
      TrainConfig parts = small(24 / accumulate, accumulate);
      parts.training.zero_grad = zero_grad;
      const Trained found = train_single(parts);
      expect_within(found.losses, expected.losses, 1e-6);
      EXPECT_LE(relative_distance(found.parameters, expected.parameters), 1e-6);
    }
  }
}

TEST(Accumulation, KeepsTheActivationsOfOneMicroStep) {
  const auto activations = [](const TrainConfig& config) {
    const StepPrograms programs = programs_of(config);
    return MemoryPlan(programs.buffers()).category_bytes(0, Category::kActivations);
  };
  EXPECT_EQ(activations(small(32, 4)), activations(small(32, 1)));
  EXPECT_LT(activations(small(32, 4)), activations(small(128, 1)));
}

TEST(Accumulation, CountsTheSamplesOfAllMicroSteps) {
  TrainerHarness run(small(6, 4));
  run.run();
  EXPECT_EQ(run.steps.front().samples, 24);
}

TEST(Accumulation, MakesALastMicroStepOfTheRowsThatAreLeft) {
  StepSpec spec = spec_of(small(6, 4), DeviceKind::kCpu, nullptr);
  spec.input.data = DataKind::kIdx;
  spec.input.train_rows = 24 + 15;
  const StepPrograms programs(spec);
  ASSERT_NE(programs.last_batch(), nullptr);
  EXPECT_EQ(programs.last_batch()->rows, 15);
  std::vector<std::int64_t> rows;
  for (const Node& node : programs.last_batch()->program.nodes()) {
    if (node.phase != Phase::kLoss) continue;
    const auto* op = std::get_if<DeviceOp>(&node.op);
    if (const auto* loss = std::get_if<PointwiseLoss>(op)) rows.push_back(loss->output.rows);
  }
  EXPECT_EQ(rows, (std::vector<std::int64_t>{6, 6, 3}));
}

TEST(StepPrograms, AreOrderedWithEveryOptimizerDataSourceAndDelay) {
  const OptimizerConfig optimizers[] = {
      {.kind = OptimizerKind::kAdam},
      {.kind = OptimizerKind::kAdamW, .weight_decay = 0.01},
      {.kind = OptimizerKind::kSgd},
      {.kind = OptimizerKind::kSgd, .momentum = 0.9, .nesterov = true},
  };
  for (const OptimizerConfig& optimizer : optimizers) {
    for (const DataKind data : {DataKind::kRandn, DataKind::kIdx}) {
      StepSpec spec = spec_of(small(6, 3), DeviceKind::kCpu, nullptr);
      spec.update.optimizer = optimizer;
      spec.input.data = data;
      spec.input.train_rows = data == DataKind::kIdx ? 31 : 0;
      spec.input.test_rows = data == DataKind::kIdx ? 7 : 0;
      spec.io_delay_s = 0.001;
      const StepPrograms programs(spec);
      for (const StepProgram* step : programs.all()) {
        EXPECT_GT(expect_every_deletion_found(step->program), 0) << step->program.name();
      }
    }
  }
}

TEST(IoDelay, IsInTheStepTimeAsInjected) {
  TrainConfig config = small(8, 1);
  config.data.io_delay_ms = 5;
  TrainerHarness run(config);
  run.after_step = [](const StepReport& report) {
    EXPECT_GE(account_of(*report.timeline, kMainLane)[Part::kInjected], 0.005);
    EXPECT_GE(report.wall_s, 0.005);
  };
  run.run();
}

}  // namespace
}  // namespace barestep
