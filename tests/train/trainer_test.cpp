#include "train/trainer.h"

#include "support/busy_machine.h"
#include "support/expect_error.h"
#include "support/file_runs.h"
#include "support/layers.h"
#include "support/saved_weights.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

TrainConfig random_run(std::int64_t steps) {
  TrainConfig config;
  config.model.dim = 16;
  config.model.depth = 2;
  config.data.batch_size = 8;
  config.training.steps = steps;
  config.device.threads = 1;
  config.device.gemm = GemmProvider::kReference;
  return config;
}

class TrainerOfFiles : public TempDirTest {};

TEST(Trainer, ReportsEveryStepOnce) {
  TrainerHarness run(random_run(7));
  EXPECT_EQ(run.trainer->steps(), 7);
  run.run();
  ASSERT_EQ(run.steps.size(), 7U);
  for (std::size_t i = 0; i < 7; ++i) {
    const StepReport& report = run.steps[i];
    EXPECT_EQ(report.step, static_cast<std::int64_t>(i));
    EXPECT_EQ(report.steps, 7);
    EXPECT_EQ(report.samples, 8);
    EXPECT_EQ(report.warmup, i < 5);
    EXPECT_GT(report.wall_s, 0);
    EXPECT_EQ(report.flops, run.steps[0].flops);
  }
}

/// Also if the next step is queued already.
TEST(Trainer, DivergenceNamesTheStepAndTheLossBefore) {
  for (const std::int64_t log_every : {1, 100}) {
    TrainConfig config = random_run(20);
    config.optimizer.lr = 1e30;
    config.training.log_every = log_every;
    TrainerHarness run(config);
    expect_error(ExitCode::kDiverged, "training diverged: the loss is ", [&] { run.run(); });
    ASSERT_FALSE(run.steps.empty());
    TrainerHarness again(config);
    expect_error(ExitCode::kDiverged,
                 " at step " + std::to_string(run.steps.size()) + ", it was " +
                     std::to_string(run.steps.back().loss).substr(0, 4),
                 [&] { again.run(); });
    TrainerHarness advised(config);
    expect_error(ExitCode::kDiverged, "; use a smaller --lr (it is 1e+30)", [&] { advised.run(); });
  }
}

TEST(Trainer, ReadsTheLossOfAStepThatIsNotLoggedWhileTheNextOneRuns) {
  const auto queued_at_reports = [](TrainConfig config, std::int64_t log_every) {
    config.training.log_every = log_every;
    TrainerHarness run(std::move(config));
    std::vector<std::int64_t> ahead;
    run.after_step = [&](const StepReport& report) {
      ahead.push_back(run.trainer->runner().steps() - report.step - 1);
    };
    run.run();
    return std::pair(ahead, run.losses());
  };
  const auto [one_by_one, losses] = queued_at_reports(random_run(8), 1);
  EXPECT_THAT(one_by_one, Each(0));
  const auto [pipelined, same_losses] = queued_at_reports(random_run(8), 3);
  EXPECT_THAT(pipelined, ElementsAre(0, 1, 1, 0, 1, 1, 0, 0));
  EXPECT_EQ(same_losses, losses);
}

TEST(Trainer, StepsThatOverlapOnTheHostAddUpToTheTimeOfTheRun) {
  TrainConfig config = random_run(12);
  config.training.log_every = 100;
  config.data.io_delay_ms = 5;
  repeat_while_busy([&] {
    TrainerHarness run(config);
    const auto start = std::chrono::steady_clock::now();
    run.run();
    const double all_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    double sum_s = 0;
    for (const StepReport& report : run.steps) {
      EXPECT_GT(report.wall_s, 0.004);
      sum_s += report.wall_s;
    }
    EXPECT_LE(sum_s, all_s);
  });
}

/// Whether the host waits for each step, or first queues the next one.
TEST(Trainer, AskedToStopEndsAfterTheCurrentStep) {
  for (const std::int64_t log_every : {1, 100}) {
    TrainConfig config = random_run(50);
    config.training.log_every = log_every;
    TrainerHarness harness(config);
    std::atomic<bool> requested{false};
    harness.trainer->stop_when(requested);
    harness.after_step = [&](const StepReport& report) { requested = report.step == 10; };
    harness.run();
    EXPECT_TRUE(harness.trainer->was_stopped());
    EXPECT_EQ(harness.trainer->steps_done(), log_every == 1 ? 12 : 13);
    EXPECT_EQ(std::ssize(harness.steps), harness.trainer->steps_done());
    TrainerHarness unasked(config);
    unasked.run();
    EXPECT_FALSE(unasked.trainer->was_stopped());
    EXPECT_EQ(harness.trainer->weights().size(), unasked.trainer->weights().size());
  }
}

TEST(Trainer, AskedToStopInItsLastStepIsComplete) {
  TrainConfig config = random_run(50);
  config.training.steps = 4;
  TrainerHarness harness(config);
  std::atomic<bool> requested{false};
  harness.trainer->stop_when(requested);
  harness.after_step = [&](const StepReport& report) { requested = report.step == 2; };
  harness.run();
  EXPECT_EQ(harness.trainer->steps_done(), 4);
  EXPECT_FALSE(harness.trainer->was_stopped());
}

TEST(Trainer, DivergenceAtTheFirstStepHasNoLossBefore) {
  TrainConfig config = random_run(2);
  TrainerHarness built(config);
  FlatWeights weights = built.trainer->weights();
  for (float& weight : weights) weight *= 1e30F;
  Trainer trainer(built.config, *built.programs, {built.device.get()}, {}, nullptr, weights);
  expect_error(ExitCode::kDiverged,
               "training diverged: the loss is inf at step 0; scale down the samples or the "
               "weights of --load",
               [&] { trainer.run(built); });
}

TEST(Trainer, DivergenceNamesWhatIsSetUnusuallyBeforeTheLearningRate) {
  const auto expect_remedy = [](const std::function<void(OptimizerConfig&)>& change,
                                const std::string& remedy) {
    TrainConfig config = random_run(20);
    change(config.optimizer);
    TrainerHarness run(config);
    expect_error(ExitCode::kDiverged, "; use " + remedy, [&] { run.run(); });
  };
  const std::string lr = " or a smaller --lr (it is 0.001)";
  expect_remedy([](auto& optimizer) { optimizer.eps = 0; }, "a larger --eps (it is 0)" + lr);
  expect_remedy(
      [](auto& optimizer) {
        optimizer.kind = OptimizerKind::kAdamW;
        optimizer.weight_decay = 1e30;
      },
      "a smaller --weight-decay (it is 1e+30)" + lr);
  expect_remedy(
      [](auto& optimizer) {
        optimizer.kind = OptimizerKind::kSgd;
        optimizer.momentum = 0.999;
        optimizer.lr = 1e20;
      },
      "a smaller --momentum (it is 0.999) or a smaller --lr (it is 1e+20)");
}

TEST(Trainer, KeepsADenormalEpsilonAboveZero) {
  TrainConfig config = random_run(20);
  config.device.denormals = Denormals::kKeep;
  config.optimizer.eps = 1e-40;  // 0 if denormals are flushed: a dead unit's 0 / 0 is NaN
  TrainerHarness run(config);
  run.run();
  EXPECT_EQ(run.steps.size(), 20U);
}

TEST_F(TrainerOfFiles, DivergenceOfAnEvaluationNamesTheEpoch) {
  TrainConfig config = number_run(folder());
  config.training.epochs.reset();
  config.training.steps = 1;
  config.optimizer.lr = 1e30;
  TrainerHarness run(config);
  expect_error(ExitCode::kDiverged, "training diverged: the test loss is inf after epoch 1; use",
               [&] { run.run(); });
  EXPECT_EQ(run.evaluations.size(), 0U);
}

/// Moments and gradients are not saved, so Adam restarts in the second half; the data continue as
/// if the weights had been drawn.
TEST(Trainer, GoesOnWithTheWeightsItIsGiven) {
  TrainerHarness first(random_run(3));
  first.run();
  const FlatWeights weights = first.trainer->weights();
  TrainerHarness second(random_run(1));
  Trainer loaded(second.config, *second.programs, {second.device.get()}, {}, nullptr, weights);
  EXPECT_EQ(loaded.weights(), weights);
  loaded.run(second);
  EXPECT_NE(loaded.weights(), weights);
  EXPECT_EQ(second.steps.size(), 1U);

  TrainerHarness fresh(random_run(1));
  const FlatWeights start = fresh.trainer->weights();
  Trainer same(fresh.config, *fresh.programs, {fresh.device.get()}, {}, nullptr, start);
  same.run(fresh);
  EXPECT_EQ(fresh.losses().front(), first.losses().front()) << "x and y are the same";
}

TEST_F(TrainerOfFiles, EvaluatesBehindEveryEpochOnTheWholeTestSet) {
  TrainerHarness run(class_run(folder()));
  EXPECT_EQ(run.trainer->steps(), 16);
  run.run();
  ASSERT_EQ(run.evaluations.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    const EvaluationReport& report = run.evaluations[i];
    EXPECT_EQ(report.epoch, static_cast<std::int64_t>(i));
    EXPECT_EQ(report.epochs, 4);
    EXPECT_EQ(report.samples, 10);
    const double correct = *report.accuracy * 10;
    EXPECT_NEAR(correct, std::round(correct), 1e-9);
  }
  EXPECT_EQ(run.steps[3].samples, 6) << "the smaller last batch";
  EXPECT_LT(run.steps[3].flops, run.steps[2].flops);
}

/// An evaluation changes nothing, and the order of files does not depend on a step's position.
TEST_F(TrainerOfFiles, TrainsTheSameWithoutAnEvaluation) {
  const TrainConfig with = class_run(folder());
  TrainerHarness evaluated(with);
  evaluated.run();
  TrainConfig config = with;
  config.data.test_split = 0;
  TrainerHarness whole(config);
  EXPECT_EQ(whole.dataset->train_rows(), 40);
  // The same training set as before, split from the files.
  StepSpec spec = spec_of(with, DeviceKind::kCpu, &*evaluated.dataset);
  spec.input.test_rows = 0;
  const StepPrograms programs(spec);
  Trainer trainer(evaluated.config, programs, {evaluated.device.get()}, {}, &*evaluated.dataset);
  TrainerHarness observer(with);
  trainer.run(observer);
  EXPECT_EQ(observer.losses(), evaluated.losses());
  EXPECT_EQ(observer.evaluations.size(), 0U);
}

/// Every step takes the same samples. At first gradients overflow, as the scale is too large; until
/// it is right, nothing happens.
TEST_F(TrainerOfFiles, CountsUpdatesForTheLearningRateAndNotSkippedSteps) {
  TrainConfig config = number_run(folder());
  config.data.batch_size = 30;
  config.data.shuffle = false;
  config.data.test_split = 0.25;
  config.training.epochs.reset();
  config.device.precision = Precision::kFp16;
  config.optimizer.lr_warmup = 4;
  config.optimizer.lr_schedule = LrSchedule::kStep;
  config.optimizer.lr_step = 2;
  const auto trained = [&](std::int64_t steps, double scale) {
    config.training.steps = steps;
    config.training.loss_scale = LossScaling{.initial = scale};
    auto run = std::make_unique<TrainerHarness>(config);
    run->run();
    return run;
  };
  constexpr std::int64_t kSteps = 12;
  const auto all = trained(kSteps, 0x1p24);
  std::vector<double> rates;
  for (const StepReport& step : all->steps) {
    if (!step.scaling->skipped) rates.push_back(step.lr);
  }
  const std::int64_t skipped = kSteps - std::ssize(rates);
  ASSERT_GT(skipped, 2);
  ASSERT_GT(rates.size(), 5U);
  const double lr = config.optimizer.lr.value_or(0);
  EXPECT_EQ(all->steps.front().lr, lr / 4) << "skipped, but this was the rate";
  EXPECT_EQ(std::vector<double>(rates.begin(), rates.begin() + 5),
            (std::vector<double>{lr / 4, lr / 2, lr * 3 / 4, lr, lr}));
  const auto whole = trained(kSteps - skipped, 0x1p24 / static_cast<double>(1 << skipped));
  EXPECT_EQ(whole->trainer->weights(), all->trainer->weights());
}
}  // namespace
}  // namespace barestep
