#include "profiler/account.h"

#include "core/statistics.h"
#include "support/each_step.h"
#include "support/sample_profile.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

TEST(Account, GivesEveryStretchOfAStepItsCause) {
  const SampleProfile sample;
  const auto accounts = accounts_of(sample.profile());
  ASSERT_EQ(accounts.size(), 2U);
  for (const StepAccount& account : accounts) {
    EXPECT_NEAR(account.wall_s, 8e-3, 1e-12);
    EXPECT_NEAR(account[Part::kDataWait], 0.2e-3, 1e-12);
    EXPECT_NEAR(account[Part::kHostToDevice], 0.5e-3, 1e-12);
    EXPECT_NEAR(account[Part::kForward], 2e-3, 1e-12);
    EXPECT_NEAR(account[Part::kLoss], 0.5e-3, 1e-12);
    EXPECT_NEAR(account[Part::kBackward], 3e-3, 1e-12);
    EXPECT_NEAR(account[Part::kOptimizer], 1e-3, 1e-12);
    // Idle before forward, before Adam, and after Adam.
    EXPECT_NEAR(account[Part::kIdle], 0.3e-3 + 0.1e-3 + 0.4e-3, 1e-12);
    EXPECT_EQ(account[Part::kHost], 0);
    EXPECT_EQ(account[Part::kExposedCommunication], 0);
    EXPECT_EQ(account.hidden_communication_s, 0);
  }
}

/// One lane's work of one program at artificial times, in milliseconds of a 10 ms step.
class Scene {
 public:
  NodeId add(Lane lane, Phase phase, double begin, double end, std::vector<Wait> waits = {}) {
    program_.add({.op = DeviceOp{Delay{}}, .lane = lane, .phase = phase, .waits = waits});
    const NodeId node = program_.size() - 1;
    spans_.push_back({.begin_s = begin / 1e3, .end_s = end / 1e3});
    return node;
  }
  StepAccount account(double fetched = 0) {
    const RunPlan plan(program_, RunDetail::kNodes);
    const HostTimes host{
        .queued_s = 0.0001, .fetch_begin_s = 0.0001, .fetched_s = fetched / 1e3, .end_s = 0.010};
    const std::vector<ProfiledStep> steps = {profiled_step(
        plan, 0, host, [&](NodeId node) { return spans_[static_cast<std::size_t>(node)]; })};
    return accounts_of(profile_of(steps, 0, {})).at(0);
  }

 private:
  Buffers buffers_;
  Program program_{"scene", buffers_};
  std::vector<Span> spans_;
};
TEST(Account, CallsInputThatIsNotBeingCopiedADataWait) {
  Scene scene;
  const NodeId slow = scene.add(Lane::kCopy, Phase::kData, 1, 5);  // a slow disk
  scene.add(Lane::kCompute, Phase::kForward, 5, 9, {{.node = slow}});
  EXPECT_NEAR(scene.account()[Part::kDataWait], 5e-3, 1e-12);
}

TEST(Account, CallsAHostThatStillFetchesADataWait) {
  Scene scene;
  scene.add(Lane::kCompute, Phase::kForward, 0, 4);
  const StepAccount account = scene.account(7);
  EXPECT_NEAR(account[Part::kDataWait], 3e-3, 1e-12);
  EXPECT_NEAR(account[Part::kIdle], 3e-3, 1e-12);
}

MeanAccount mean_of(const Profile& profile) {
  MeanAccount mean;
  for (const StepAccount& account : accounts_of(profile)) mean.add(account);
  return mean;
}

TEST(AccountTable, SumsToTheWallTime) {
  const SampleProfile sample;
  const std::string table = account_table(mean_of(sample.profile()).mean());
  EXPECT_THAT(table, HasSubstr("  backward                      3.0000 ms   37.50 %\n"));
  EXPECT_THAT(table, HasSubstr("  wall time                     8.0000 ms  100.00 %\n"));
  // The mean of 0 before the first step and 2 ms before the second.
  EXPECT_THAT(table, HasSubstr("  between steps                 1.0000 ms   12.50 %\n"));
}

TEST(AccountTable, ShowsTheErrorOfClocksThatWereCompared) {
  StepAccount account{.wall_s = 1e-3};
  EXPECT_THAT(account_table(account), Not(HasSubstr("clocks")));
  account.clock_error_s = 2e-6;
  EXPECT_THAT(account_table(account),
              HasSubstr("  error of the clocks           0.0020 ms    0.20 %\n"));
}

TEST(AccountTable, ShowsWhatStepsWaitedForCheckpoints) {
  MeanAccount mean;
  mean.add({.wall_s = 1e-3});
  mean.add({.wall_s = 1e-3, .checkpoint_s = 4e-3});
  EXPECT_THAT(account_table(mean.mean()),
              HasSubstr("  checkpoint                    2.0000 ms  200.00 %\n"));
  EXPECT_THAT(account_table({.wall_s = 1e-3}), Not(HasSubstr("checkpoint")));
}

TEST(Bottleneck, NamesTheLargestPartAndItsLargestWork) {
  const SampleProfile sample;
  const Profile profile = sample.profile();
  EXPECT_EQ(bottleneck(profile, mean_of(profile), {}),
            "The bottleneck is the backward pass: 37.5 % of a step, 3.000ms; its largest piece is "
            "gemm of "
            "net.0 (3.000ms).\n");
  // 320 bytes of a product at 213,333 bytes per second take 1.5 ms.
  EXPECT_EQ(bottleneck(profile, mean_of(profile), {.bytes_per_s = 320 / 1.5e-3}),
            "The bottleneck is the backward pass: 37.5 % of a step, 3.000ms; its largest piece is "
            "gemm of "
            "net.0 (3.000ms, 50 % of its roof).\n");
  EXPECT_EQ(bottleneck({}, {}, {}), "");
}

TEST(Bottleneck, SaysWhatAWaitIsFor) {
  const SampleProfile sample;
  const auto with = [&](Part part) {
    StepAccount account{.wall_s = 1};
    account[part] = 0.9;
    MeanAccount mean;
    mean.add(account);
    return bottleneck(sample.profile(), mean, {});
  };
  EXPECT_THAT(
      with(Part::kDataWait),
      HasSubstr("is waiting for data: 90.0 % of a step, 900.000ms: input is produced more slowly"));
  EXPECT_THAT(with(Part::kHostToDevice), HasSubstr("input is copied more slowly"));
  EXPECT_THAT(with(Part::kInjected), HasSubstr("an injected delay"));
  EXPECT_THAT(with(Part::kExposedCommunication),
              HasSubstr(": the messages are slow, or a rank is late"));
  EXPECT_THAT(with(Part::kOtherDevice), HasSubstr("another device has more to compute"));
  EXPECT_THAT(with(Part::kHost), HasSubstr("the host queues work more slowly"));
  EXPECT_THAT(
      with(Part::kIdle),
      HasSubstr(
          ": no known cause; work starts late, its end is noticed late, or the machine is busy"));
}

/// The account of a step measured by nodes does not count the gaps inside a run in its phase.
TEST(Account, IsAsGoodOfStepsThatAreMeasuredMoreOrLessFinely) {
  TrainConfig config;
  config.model.dim = 256;
  config.model.depth = 2;
  config.training.steps = 12;
  TrainerHarness run(config);
  ByNodes finely([](std::int64_t step) { return step % 2 == 1; });
  Trainer trainer(run.config, *run.programs, {run.device.get()}, {}, nullptr, {}, &finely);
  std::size_t steps = 0;
  run.after_step = [&](const StepReport& report) {
    const RunPlan& plan = *report.timeline->at(0)->plan;
    const std::size_t nodes = plan.program().nodes().size();
    EXPECT_EQ(plan.runs().size() == nodes, report.step % 2 == 1) << report.step;
    const StepAccount account = account_of(*report.timeline, kMainLane);
    double sum_s = 0;
    for (const double part_s : account.part_s) {
      EXPECT_GE(part_s, 0);
      sum_s += part_s;
    }
    EXPECT_NEAR(sum_s, report.wall_s, 1e-9);
    for (const Part part : {Part::kForward, Part::kLoss, Part::kBackward, Part::kOptimizer}) {
      EXPECT_GT(account[part], 0) << name_of(part);
    }
    ++steps;
  };
  trainer.run(run);
  EXPECT_EQ(steps, 12U);
}

TEST(Parts, HaveANameEach) {
  EXPECT_EQ(kValuesOf<Part>.back(), Part::kIdle);
}

}  // namespace
}  // namespace barestep
