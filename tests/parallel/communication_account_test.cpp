#include "parallel/communication_account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "core/clock.h"
#include "kernels/cpu_device.h"
#include "parallel/clock_alignment.h"
#include "parallel/event_records.h"
#include "support/busy_machine.h"
#include "support/file_runs.h"
#include "support/rank_run.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

// Each thread's clock may be off.
thread_local double clock_is_ahead_s = 0;
double shifted_clock() {
  return now_s() + clock_is_ahead_s;
}

/// Of three ranks whose clocks are 0, 5 and -10 s ahead; on each rank.
void align_shifted_clocks(const std::function<void(const ClockAlignment&)>& expect) {
  on_threads(3, [&](Communicator& ranks) {
    clock_is_ahead_s = 5.0 * ranks.rank() * (ranks.rank() == 2 ? -1 : 1);
    expect(align_clocks(ranks, &shifted_clock));
  });
}

TEST(ClockAlignment, FindsHowFarClocksAreApartWithinItsBound) {
  align_shifted_clocks([](const ClockAlignment& clocks) {
    EXPECT_EQ(clocks.shift_s[0], 0);
    EXPECT_LE(std::abs(clocks.shift_s[1] + 5), clocks.error_s[1]);
    EXPECT_LE(std::abs(clocks.shift_s[2] - 10), clocks.error_s[2]);
    EXPECT_GT(clocks.largest_error_s(), 0);
  });
}

TEST(ClockAlignment, IsWithinATenthOfASecond) {
  repeat_while_busy([] {
    align_shifted_clocks(
        [](const ClockAlignment& clocks) { EXPECT_LT(clocks.largest_error_s(), 0.1); });
  });
}

TEST(ClockAlignment, OfOneRankIsExact) {
  on_threads(
      1, [](Communicator& ranks) { EXPECT_EQ(align_clocks(ranks, &now_s).largest_error_s(), 0); });
}

/// Rank 0 computes until 4 and reduces from 1 to 7; rank 1 comes at 5 and computes until then.
std::vector<CommunicatedStep> late_rank_1() {
  return {{.computing_end_s = 4, .collectives = {{.ready_s = 0.5, .start_s = 1, .end_s = 7}}},
          {.computing_end_s = 5, .collectives = {{.ready_s = 5, .start_s = 5, .end_s = 7.5}}}};
}

TEST(CommunicationSummary, SplitsCommunicationIntoHiddenWaitingAndMoving) {
  const std::vector<std::vector<CommunicatedStep>> steps(3, late_rank_1());
  const CommunicationSummary summary = summary_of(steps);
  EXPECT_EQ(summary.steps, 3);
  // Rank 0: 1 to 4 is hidden, 4 to 5 waiting, 5 to 7 moving. Rank 1: all of its 2.5 is moving.
  EXPECT_DOUBLE_EQ(summary.parts.hidden_s, (3 + 0) / 2.0);
  EXPECT_DOUBLE_EQ(summary.parts.waiting_s, (1 + 0) / 2.0);
  EXPECT_DOUBLE_EQ(summary.parts.moving_s, (2 + 2.5) / 2.0);
  EXPECT_DOUBLE_EQ(summary.collectives[0].ready_before_start_s, 0.5 / 2);
  EXPECT_EQ(summary.ranks[0].steps_waited_for, 0);
  EXPECT_EQ(summary.ranks[1].steps_waited_for, 3);
  EXPECT_DOUBLE_EQ(summary.ranks[0].cost_s, 0);
  EXPECT_DOUBLE_EQ(summary.ranks[1].cost_s, 1);
}

TEST(CommunicationSummary, NamesARankOnlyWhereSomebodyWaited) {
  std::vector<CommunicatedStep> step = late_rank_1();
  step[0].computing_end_s = 6;  // longer than rank 1 needs
  const CommunicationSummary summary = summary_of(std::vector<std::vector<CommunicatedStep>>{step});
  EXPECT_DOUBLE_EQ(summary.parts.waiting_s, 0);
  EXPECT_EQ(summary.ranks[1].steps_waited_for, 0);
}

TEST(CommunicationSummary, OfNoStepsIsEmpty) {
  EXPECT_EQ(summary_of({}).text(), "");
}

TEST(CommunicationSummary, TellsItsFiguresInWords) {
  CommunicationSummary summary =
      summary_of(std::vector<std::vector<CommunicatedStep>>{late_rank_1()});
  summary.collectives[0].name = "bucket 1";
  summary.collectives[0].bytes = 1 << 20;
  summary.clock_error_s = 2.5e-6;
  EXPECT_EQ(summary.text(),
            "Communication of a step, mean of 1 step and 2 ranks\n"
            "  all                        4250.0000 ms\n"
            "  hidden                     1500.0000 ms\n"
            "  exposed, waiting            500.0000 ms\n"
            "  exposed, moving bytes      2250.0000 ms\n"
            "\n"
            "Reduced       Size  Queued (ms)     Hidden   Waiting     Moving\n"
            "bucket 1  1.00 MiB     250.0000  1500.0000  500.0000  2250.0000\n"
            "\n"
            "Waited for rank 0: longest in 0 of 1 step, 0.0000 ms a step\n"
            "Waited for rank 1: longest in 1 of 1 step, 1000.0000 ms a step\n"
            "The ranks' clocks are aligned within 2.5 us\n\n");
}

/// What a run of ranks as threads hears, with a pause on rank 1.
enum class By { kRecords, kEvents, kEventsInGraphs };

struct Heard {
  CommunicationSummary summary;
  std::vector<StepTimes> times_of_rank_0;
};

class Times final : public TrainObserver {
 public:
  explicit Times(EventRecords* records) : records_(records) {}
  void on_batch() override {
    if (records_ != nullptr) records_->send(steps_);
    ++steps_;
  }
  void on_step(const StepReport& report) override { all.push_back(report.times); }
  void on_evaluation(const EvaluationReport& /*report*/) override {}
  std::vector<StepTimes> all;

 private:
  EventRecords* records_;
  std::int64_t steps_ = 0;
};

Heard heard(double pause_ms, const DdpSettings& settings = small_buckets(), By by = By::kRecords) {
  TrainConfig config = rank_config();
  config.training.steps = 7;
  config.device.graph = by == By::kEventsInGraphs;
  config.injected.slow_rank = SlowRank{1, pause_ms};
  Heard result;
  on_threads(2, [&](Communicator& ranks) {
    const Ddp scheme(settings);
    const StepPrograms programs(
        spec_of_rank(config, DeviceKind::kCpu, nullptr, ranks.rank(), ranks.size()), &scheme);
    const auto device = make_cpu_device({.threads = 1, .gemm = GemmProvider::kReference});
    CommunicationAccount account(programs, config.training, 2);
    std::optional<EventRecords> events;
    if (by != By::kRecords) {
      events.emplace(*device, ranks, programs.train().program, account.nodes(), account);
    }
    Times times(events ? &*events : nullptr);
    {
      Trainer trainer(config, programs, {events ? &events->device() : device.get()},
                      events ? &events->communicator() : &ranks, nullptr);
      if (!events) {
        device->set_record_sink(&account);
        ranks.set_record_sink(&account);
      }
      trainer.run(times);
      device->set_record_sink(nullptr);
      ranks.set_record_sink(nullptr);
    }
    const CommunicationSummary mine = account.gather(ranks, events ? events->clock_error_s() : 0);
    if (ranks.rank() == 0) result = {mine, times.all};
  });
  return result;
}

/// Wherever the update stands, the wait is in the account of the step as communication.
TEST(CommunicationAccount, AndTheStepsAccountBothShowTheWait) {
  repeat_while_busy([] {
    for (const bool per_bucket : {false, true}) {
      DdpSettings settings = small_buckets();
      settings.update_per_bucket = per_bucket;
      const Heard result = heard(20, settings);
      EXPECT_GT(result.summary.parts.waiting_s, 0);
      double most_s = 0;
      for (const StepTimes& times : result.times_of_rank_0) {
        most_s = std::max(most_s, times.phase_s[static_cast<std::size_t>(Phase::kReduce)]);
      }
      EXPECT_GE(most_s, 0.015) << "of 0.02";
    }
  });
}

class CommunicationAccountBy : public testing::TestWithParam<By> {};

TEST_P(CommunicationAccountBy, NamesTheRankThatIsLateAndWhatItCosts) {
  constexpr double kPause_s = 0.02;
  repeat_while_busy([] {
    const CommunicationSummary summary = heard(1e3 * kPause_s, small_buckets(), GetParam()).summary;
    EXPECT_EQ(summary.ranks[0].steps_waited_for, 0);
    EXPECT_EQ(summary.ranks[1].steps_waited_for, 5);
    EXPECT_NEAR(summary.ranks[1].cost_s, kPause_s, 0.1 * kPause_s);
  });
}

INSTANTIATE_TEST_SUITE_P(, CommunicationAccountBy,
                         testing::Values(By::kRecords, By::kEvents, By::kEventsInGraphs));

TEST(CommunicationAccount, KnowsWhenABucketOfBf16IsComplete) {
  DdpSettings settings = small_buckets();
  settings.bf16_gradients = true;
  for (const By by : {By::kRecords, By::kEvents}) {
    const CommunicationSummary summary = heard(0, settings, by).summary;
    for (const auto& each : summary.collectives) {
      EXPECT_GE(each.ready_before_start_s, 0) << each.name;
      EXPECT_LT(each.ready_before_start_s, 10) << each.name << ": not since the clock began";
    }
  }
}

class UnevenEvaluation : public TempDirTest {};

/// A step's communication on one rank is compared with the same step's on the other, although they
/// evaluate 2 and 1 batches after each epoch, and a last batch has a program of its own.
TEST_F(UnevenEvaluation, LeavesTheAccountOfCommunicationToTrainingSteps) {
  TrainConfig config = class_run(folder());
  config.data.batch_size = 5;
  config.data.test_split = 0.18;  // 7 of 40 samples: 4 and 3, in batches of 3
  config.device.threads = 1;
  on_threads(2, [&](Communicator& ranks) {
    const Dataset dataset =
        load_dataset(config.data, widths_of(config.model, kDefaultDimCpu), config.model.loss);
    const Ddp scheme(small_buckets());
    const StepPrograms programs(
        spec_of_rank(config, DeviceKind::kCpu, &dataset, ranks.rank(), ranks.size()), &scheme);
    const auto device = make_cpu_device({.threads = 1, .gemm = GemmProvider::kReference});
    CommunicationAccount account(programs, config.training, 2);
    Times times(nullptr);
    {
      Trainer trainer(config, programs, {device.get()}, &ranks, &dataset);
      device->set_record_sink(&account);
      ranks.set_record_sink(&account);
      trainer.run(times);
      device->set_record_sink(nullptr);
      ranks.set_record_sink(nullptr);
      // Four epochs of 33 samples, one of them twice: 6 whole batches and a smaller one.
      ASSERT_EQ(trainer.steps(), 4 * 7);
      EXPECT_EQ(trainer.runner().steps(), 4 * (7 + (ranks.rank() == 0 ? 2 : 1)));
    }
    const CommunicationSummary summary = account.gather(ranks);
    EXPECT_EQ(summary.steps, 4 * 6 - 2);
    double longest_s = 0;
    for (const StepTimes& step : times.all) longest_s = std::max(longest_s, step.wall_s);
    EXPECT_LE(summary.parts.waiting_s, longest_s);
  });
}

TEST(CommunicationAccount, ListsTheLossAndEveryBucket) {
  const CommunicationSummary summary = heard(0).summary;
  EXPECT_EQ(summary.steps, 5);
  std::vector<std::string> names;
  std::int64_t bytes = 0;
  for (const auto& each : summary.collectives) {
    names.push_back(each.name);
    bytes += each.bytes;
  }
  EXPECT_THAT(names, testing::ElementsAre("loss", "bucket 1", "bucket 2", "bucket 3"));
  EXPECT_EQ(summary.collectives[0].bytes, 8);  // beside the loss, whether a rank is to end
  EXPECT_GT(bytes, 4 * (5 * 7 + 7 + 7 * 6 + 6 + 6 * 3 + 3));
}

}  // namespace
}  // namespace barestep
