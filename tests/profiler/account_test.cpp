#include "profiler/account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/statistics.h"
#include "profiler/profiled_device.h"
#include "support/sample_profile.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

using ::testing::HasSubstr;

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
    // Before forward and Adam, and after Adam.
    EXPECT_NEAR(account[Part::kIdle], 0.3e-3 + 0.1e-3 + 0.4e-3, 1e-12);
    EXPECT_EQ(account[Part::kHost], 0);
    EXPECT_EQ(account[Part::kExposedCommunication], 0);
    EXPECT_EQ(account.hidden_communication_s, 0);
  }
}

/// One lane's work of one program at made-up times, in milliseconds of a step of 10.
class Scene {
 public:
  NodeId add(Lane lane, Phase phase, double begin, double end, std::vector<Wait> waits = {}) {
    program_.add({.op = DeviceOp{Delay{}}, .lane = lane, .phase = phase, .waits = waits});
    const NodeId node = program_.size() - 1;
    records_.push_back({.tag = {.program = 0, .step = 0, .node = node},
                        .label = "delay",
                        .start_s = begin / 1e3,
                        .end_s = end / 1e3});
    return node;
  }
  StepAccount account(double fetched = 0) {
    RecordCollector collector({.first = 0, .end = 1}, 100);
    for (const Record& record : records_) collector.on_record(record);
    const Program* const program = &program_;
    const HostStep step{.queued_s = 0.0001, .fetched_s = fetched / 1e3, .end_s = 0.010};
    return accounts_of(join(std::span(&program, 1), collector, std::span(&step, 1))).at(0);
  }

 private:
  Buffers buffers_;
  Program program_{"scene", buffers_};
  std::vector<Record> records_;
};

TEST(Account, TellsExposedFromHiddenCommunication) {
  Scene scene;
  scene.add(Lane::kCompute, Phase::kBackward, 0, 4);
  const NodeId reduce = scene.add(Lane::kComm, Phase::kReduce, 3, 6);
  scene.add(Lane::kCompute, Phase::kOptimizer, 6.5, 10, {{.node = reduce}});
  const StepAccount account = scene.account();
  EXPECT_NEAR(account[Part::kExposedCommunication], 2e-3, 1e-12);
  EXPECT_NEAR(account[Part::kIdle], 0.5e-3, 1e-12);
  EXPECT_NEAR(account.hidden_communication_s, 1e-3, 1e-12);
}

TEST(Account, CountsWorkOfOtherLanesAtTheEnd) {
  Scene scene;
  scene.add(Lane::kCompute, Phase::kBackward, 0, 4);
  scene.add(Lane::kComm, Phase::kReduce, 3, 6);
  scene.add(Lane::kComm, Phase::kOptimizer, 7, 9);
  const StepAccount account = scene.account();
  EXPECT_NEAR(account[Part::kExposedCommunication], 2e-3, 1e-12);
  EXPECT_NEAR(account[Part::kOptimizer], 2e-3, 1e-12);
  EXPECT_NEAR(account[Part::kIdle], 2e-3, 1e-12);
}

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

TEST(AccountTable, SumsToTheWallTime) {
  const SampleProfile sample;
  const std::string table = account_table(accounts_of(sample.profile()));
  EXPECT_THAT(table, HasSubstr("Account of a profiled step, mean of 2\n"));
  EXPECT_THAT(table, HasSubstr("  backward                      3.0000 ms   37.50 %\n"));
  EXPECT_THAT(table, HasSubstr("  wall time                     8.0000 ms  100.00 %\n"));
  // The mean of nothing before the first and 2 ms before the second.
  EXPECT_THAT(table, HasSubstr("  between steps                 1.0000 ms   12.50 %\n"));
  EXPECT_EQ(account_table({}), "");
}

TEST(Bottleneck, NamesTheLargestPartAndItsLargestWork) {
  const SampleProfile sample;
  const Profile profile = sample.profile();
  EXPECT_EQ(
      bottleneck(profile, accounts_of(profile), {}),
      "The bottleneck is backward: 37.5 % of a step, 3.000ms; its largest piece is gemm of layer 0 "
      "(3.000ms).\n");
  // 320 bytes of a product at 213,333 bytes a second take 1.5 ms.
  EXPECT_EQ(
      bottleneck(profile, accounts_of(profile), {.bytes_per_s = 320 / 1.5e-3}),
      "The bottleneck is backward: 37.5 % of a step, 3.000ms; its largest piece is gemm of layer 0 "
      "(3.000ms, 50 % of its roof).\n");
  EXPECT_EQ(bottleneck({}, {}, {}), "");
}

TEST(Bottleneck, SaysWhatAWaitIsFor) {
  const SampleProfile sample;
  const auto with = [&](Part part) {
    StepAccount account{.wall_s = 1};
    account[part] = 0.9;
    return bottleneck(sample.profile(), {account}, {});
  };
  EXPECT_THAT(with(Part::kDataWait),
              HasSubstr("is data wait: 90.0 % of a step, 900.000ms: input is made more slowly"));
  EXPECT_THAT(with(Part::kHostToDevice), HasSubstr("input is copied more slowly"));
  EXPECT_THAT(with(Part::kInjected), HasSubstr("a delay that was asked for"));
  EXPECT_THAT(with(Part::kExposedCommunication), HasSubstr("too little work hides the messages"));
  EXPECT_THAT(with(Part::kOtherDevice), HasSubstr("another device has more to compute"));
  EXPECT_THAT(with(Part::kHost), HasSubstr("the host queues work more slowly"));
  EXPECT_THAT(with(Part::kIdle), HasSubstr("starting work and noticing its end take longer"));
}

/// A run with all steps profiled: the account from records of nodes is that of the runner's runs of
/// nodes, which count the gaps inside with the phase.
TEST(Account, FromRecordsOfNodesAgreesWithTheRunners) {
  TrainConfig config;
  config.model.dim = 256;
  config.model.depth = 2;
  config.training.steps = 12;
  TrainerHarness run(config);
  RecordCollector collector({.first = 0, .end = 12}, 1000);
  ProfiledDevice device(*run.device, collector);
  Trainer trainer(run.config, *run.programs, {&device}, nullptr, nullptr);
  device.turn(true);
  std::vector<HostStep> steps;
  std::vector<StepAccount> expected;
  run.after_step = [&](const StepReport& report) {
    const StepTimeline& step = *report.timeline->at(0);
    expected.push_back(account_of(*report.timeline, kMainLane));
    steps.push_back({.step = step.step,
                     .number = report.step,
                     .begin_s = step.host.begin_s,
                     .start_s = step.host.start_s,
                     .queued_s = step.host.queued_s,
                     .fetched_s = step.host.fetched_s,
                     .end_s = step.host.end_s});
  };
  trainer.run(run);
  const Program* const program = &run.programs->train().program;
  const auto accounts = accounts_of(join(std::span(&program, 1), collector, steps));
  ASSERT_EQ(accounts.size(), 12U);
  for (std::size_t i = 0; i < accounts.size(); ++i) {
    EXPECT_NEAR(accounts[i].wall_s, expected[i].wall_s, 1e-9);
    for (const Part part : {Part::kForward, Part::kLoss, Part::kBackward, Part::kOptimizer}) {
      EXPECT_LE(accounts[i][part], expected[i][part] + 1e-9) << name_of(part);
      EXPECT_GT(accounts[i][part], 0) << name_of(part);
    }
  }
}

}  // namespace
}  // namespace barestep
