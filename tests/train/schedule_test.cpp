#include "train/schedule.h"

#include "support/expect_error.h"
#include "support/testing.h"

namespace barestep {
namespace {

StepSpec spec_of_rows(std::int64_t train_rows, std::int64_t test_rows, std::int64_t batch_size) {
  return {.model = {.widths = {3, 2}},
          .input = {.data = train_rows == 0 ? DataKind::kRandn : DataKind::kIdx,
                    .train_rows = train_rows,
                    .test_rows = test_rows},
          .batch_size = batch_size};
}

/// Each batch as "train e0 #0 @0 x4": program, epoch, number, first row, rows; "." ends an
/// evaluation.
std::vector<std::string> batches_of(const TrainingConfig& training, const StepSpec& spec) {
  const StepPrograms programs(spec);
  Schedule schedule(training, programs);
  std::vector<std::string> all;
  while (const auto batch = schedule.next()) {
    EXPECT_EQ(batch->evaluates, batch->program->program.name().ends_with("evaluate"));
    all.push_back(batch->program->program.name() + " e" + std::to_string(batch->epoch) + " #" +
                  std::to_string(batch->number) + " @" + std::to_string(batch->first) + " x" +
                  std::to_string(batch->program->rows) + (batch->ends_evaluation ? "." : ""));
  }
  EXPECT_FALSE(schedule.next()) << "the end stays the end";
  return all;
}

TEST(Schedule, RunsStepsOfRandomDataWithoutEpochs) {
  EXPECT_THAT(batches_of({.steps = 3}, spec_of_rows(0, 0, 4)),
              ElementsAre("train e0 #0 @0 x4", "train e0 #1 @0 x4", "train e0 #2 @0 x4"));
  EXPECT_EQ(batches_of({}, spec_of_rows(0, 0, 4)).size(), 20U) << "the default";
}

TEST(Schedule, EndsEpochsWithASmallerBatchAndAnEvaluation) {
  EXPECT_THAT(batches_of({.epochs = 2}, spec_of_rows(10, 7, 4)),
              ElementsAre("train e0 #0 @0 x4", "train e0 #1 @4 x4", "last batch e0 #2 @8 x2",
                          "evaluate e0 #0 @0 x4", "last evaluate e0 #1 @4 x3.", "train e1 #3 @0 x4",
                          "train e1 #4 @4 x4", "last batch e1 #5 @8 x2", "evaluate e1 #0 @0 x4",
                          "last evaluate e1 #1 @4 x3."));
}

TEST(Schedule, TriesBothUpdatesInTheWarmup) {
  const StepSpec random = spec_of_rows(0, 0, 4);
  const auto steps = [](std::int64_t warmup, const StepSpec& spec, std::int64_t done = 0) {
    return steps_of_trial({.steps = 100, .warmup = warmup}, spec, done);
  };
  EXPECT_EQ(steps(0, random), 0);
  EXPECT_EQ(steps(4, random), 0);
  EXPECT_EQ(steps(5, random), 4) << "and one of the chosen program";
  EXPECT_EQ(steps(8, random), 6);
  EXPECT_EQ(steps(50, random), 10);
  EXPECT_EQ(steps(5, random, 90), 4) << "a resumed run has a warm-up of its own";
  EXPECT_EQ(steps(5, random, 95), 0);
  EXPECT_EQ(steps(5, spec_of_rows(40, 0, 4)), 0) << "too many smaller batches";
  EXPECT_EQ(steps(5, spec_of_rows(42, 0, 4)), 4);
}

TEST(Schedule, TakesTurnsWhileUpdatesAreTried) {
  StepSpec spec = spec_of_rows(42, 0, 4);
  spec.update.tries_both = true;
  StepPrograms programs(spec);
  const StepProgram* const separate = &programs.train();
  EXPECT_FALSE(separate->is_fused);
  Schedule schedule({.steps = 22}, programs, {.steps = 9});
  const Batch first = *schedule.next();
  const Batch smaller = *schedule.next();
  Batch third = *schedule.next();
  Batch fourth = *schedule.next();
  EXPECT_EQ(first.program, separate);
  EXPECT_TRUE(smaller.program->is_fused);
  EXPECT_EQ(smaller.program->rows, 2);
  EXPECT_EQ(third.program, separate);
  EXPECT_TRUE(fourth.program->is_fused);
  programs.settle_update(false);
  for (Batch* const batch : {&third, &fourth}) {
    schedule.renew(*batch);
    EXPECT_TRUE(batch->program->is_fused);
    EXPECT_EQ(batch->program, &programs.train());
  }
  EXPECT_TRUE(schedule.next()->program->is_fused);
}

TEST(Schedule, HasWholeBatchesOnlyWhereTheyFit) {
  EXPECT_THAT(batches_of({.epochs = 1}, spec_of_rows(8, 8, 4)),
              ElementsAre("train e0 #0 @0 x4", "train e0 #1 @4 x4", "evaluate e0 #0 @0 x4",
                          "evaluate e0 #1 @4 x4."));
}

TEST(Schedule, EvaluatesNothingWithoutATestSet) {
  EXPECT_THAT(batches_of({.epochs = 2}, spec_of_rows(5, 0, 4)),
              ElementsAre("train e0 #0 @0 x4", "last batch e0 #1 @4 x1", "train e1 #2 @0 x4",
                          "last batch e1 #3 @4 x1"));
}

TEST(Schedule, StopsInTheMiddleOfAnEpochAndEvaluatesThere) {
  EXPECT_THAT(batches_of({.steps = 4}, spec_of_rows(10, 3, 4)),
              ElementsAre("train e0 #0 @0 x4", "train e0 #1 @4 x4", "last batch e0 #2 @8 x2",
                          "evaluate e0 #0 @0 x3.", "train e1 #3 @0 x4", "evaluate e1 #0 @0 x3."));
}

TEST(Schedule, EvaluatesOnceWhereTheLastStepEndsAnEpoch) {
  EXPECT_THAT(batches_of({.steps = 2}, spec_of_rows(8, 3, 4)),
              ElementsAre("train e0 #0 @0 x4", "train e0 #1 @4 x4", "evaluate e0 #0 @0 x3."));
}

TEST(Schedule, TakesFewerSamplesThanABatchAsOneSmallerBatch) {
  EXPECT_THAT(batches_of({.epochs = 2}, spec_of_rows(3, 0, 4)),
              ElementsAre("last batch e0 #0 @0 x3", "last batch e1 #1 @0 x3"));
}

/// The rows that a rank needs are those that its loader is asked for. The first rank has as many as
/// any.
TEST(Schedule, NeedsTheRowsOfItsBatches) {
  for (const auto& [train_rows, test_rows, batch] :
       {std::tuple<int, int, int>{30, 10, 8}, {7, 5, 3}, {5, 0, 64}, {12, 3, 5}, {8, 0, 7}}) {
    std::int64_t count_of_first = 0;
    for (int i = 0; i < 6; ++i) {
      const int rank = i % 3;
      StepSpec spec = spec_of_rows(train_rows, test_rows, batch);
      spec.mesh.rank = rank;
      spec.mesh.data = 3;
      spec.input.in_turns = i < 3;
      const StepPrograms programs(spec);
      TrainingConfig training;
      training.epochs = 1;
      Schedule schedule(training, programs);
      std::vector<bool> read(static_cast<std::size_t>(train_rows + test_rows));
      while (const std::optional<Batch> next = schedule.next()) {
        const BatchRows rows = schedule.rows_of(*next);
        for (std::int64_t row = 0; row < rows.count; ++row) {
          const std::int64_t place = rows.first + row * rows.stride;
          read[static_cast<std::size_t>(rows.from_test_set ? train_rows + place
                                                           : place % train_rows)] = true;
        }
      }
      EXPECT_EQ(needed_rows(spec, false), read);
      const std::int64_t count = std::ranges::count(read, true);
      if (rank == 0) count_of_first = count;
      EXPECT_LE(count, count_of_first);
      std::fill_n(read.begin(), train_rows, true);
      EXPECT_EQ(needed_rows(spec, true), read);
    }
  }
}

TEST(Schedule, CountsTheStepsOfARun) {
  EXPECT_EQ(steps_of({.epochs = 5}, spec_of_rows(8000, 0, 64)), 625);
  EXPECT_EQ(steps_of({.epochs = 5}, spec_of_rows(8001, 0, 64)), 630);
  EXPECT_EQ(steps_of({.steps = 7}, spec_of_rows(8000, 0, 64)), 7);
  EXPECT_EQ(steps_of({}, spec_of_rows(0, 0, 64)), kDefaultSteps);
  EXPECT_EQ(steps_of({.epochs = 1'000'000'000}, spec_of_rows(1 << 30, 0, 1)),
            1'000'000'000LL << 30);
}

TEST(Resolve, PutsInWhatDependsOnTheDeviceAndOnDefaults) {
  const TrainConfig cpu = resolve({}, DeviceKind::kCpu, spec_of_rows(0, 0, 64));
  EXPECT_EQ(cpu.device.device, "cpu");
  EXPECT_EQ(cpu.model.dim, kDefaultDimCpu);
  EXPECT_EQ(cpu.model.depth, kDefaultDepth);
  EXPECT_EQ(cpu.training.steps, 20);
  EXPECT_EQ(cpu.training.warmup, 5);
  EXPECT_EQ(cpu.optimizer.weight_decay, 0);
  EXPECT_FALSE(cpu.output.profile_steps) << "nothing is profiled";
  EXPECT_FALSE(cpu.output.row_limit);
  const TrainConfig gpu = resolve({}, DeviceKind::kCuda, spec_of_rows(0, 0, 64));
  EXPECT_EQ(gpu.device.device, "cuda");
  EXPECT_EQ(gpu.model.dim, kDefaultDimCuda);
}

TEST(Resolve, SaysWhichStepsAreProfiled) {
  TrainConfig config;
  config.output.profile = true;
  config = resolve(config, DeviceKind::kCpu, spec_of_rows(0, 0, 64));
  EXPECT_EQ(config.output.profile_steps, (StepRange{12, 20}));
  EXPECT_EQ(config.output.sort_by, SortBy::kDeviceTotal);
  EXPECT_EQ(config.output.row_limit, kDefaultRowLimit);
}

TEST(Resolve, LeavesWhatWasAskedFor) {
  TrainConfig requested;
  requested.device.device = "cuda:1";
  requested.model.layers = {3, 2};
  requested.optimizer.kind = OptimizerKind::kAdamW;
  requested.training.epochs = 2;
  TrainConfig expected = requested;
  expected.optimizer.lr = 0.001;
  expected.optimizer.beta1 = 0.9;
  expected.optimizer.beta2 = 0.999;
  expected.optimizer.eps = 1e-8;
  expected.optimizer.weight_decay = 0.01;
  expected.training.warmup = 5;  // for 2 x 3 steps
  const StepSpec spec = spec_of_rows(10, 0, 4);
  EXPECT_EQ(resolve(requested, DeviceKind::kCuda, spec), expected);
  EXPECT_EQ(resolve(expected, DeviceKind::kCuda, spec), expected);
}

TEST(Resolve, GivesAnEvaluationNoSteps) {
  TrainConfig config;
  config.training.evaluate_only = true;
  config = resolve(config, DeviceKind::kCpu, spec_of_rows(0, 10, 4));
  EXPECT_FALSE(config.training.steps);
  EXPECT_EQ(config.training.warmup, kDefaultWarmup);
}

}  // namespace
}  // namespace barestep
