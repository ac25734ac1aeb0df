// The account of communication of a rank on a GPU, eagerly and in graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda_device.h"
#include "parallel/communication_account.h"
#include "parallel/event_records.h"
#include "parallel/staged_communicator.h"
#include "parallel/thread_communicator.h"
#include "support/rank_run.h"

namespace barestep {
namespace {

/// Hands records on, and looks at those of each step when it is done.
class LookedAt final : public RecordSink, public TrainObserver {
 public:
  explicit LookedAt(RecordSink& next) : next_(next) {}

  /// Where they come from; before the run.
  void watch(EventRecords& events) { events_ = &events; }

  void on_record(const Record& record) override {
    records_.push_back(record);
    next_.on_record(record);
  }

  void on_batch() override {
    records_.clear();
    events_->send(steps++);
  }

  void on_step(const StepReport& report) override {
    // A GPU's events tell half a microsecond.
    const double error_s = events_->clock_error_s() + 2e-6;
    ASSERT_FALSE(records_.empty());
    for (const Record& record : records_) {
      EXPECT_EQ(record.tag.step, report.step);
      EXPECT_LE(record.start_s, record.end_s) << record.label;
      EXPECT_GE(record.start_s, report.times.host.begin_s - error_s) << record.label;
      EXPECT_LE(record.end_s, report.times.host.end_s + error_s) << record.label;
    }
    double lane_s = 0;  // when the comm lane was done with the collective before
    for (const Record& record : records_) {
      if (record.label != "all_reduce") continue;
      EXPECT_GE(record.start_s, lane_s);
      lane_s = record.end_s;
    }
  }
  void on_evaluation(const EvaluationReport& /*report*/) override {}

  std::int64_t steps = 0;

 private:
  RecordSink& next_;
  EventRecords* events_ = nullptr;
  std::vector<Record> records_;
};

TEST(EventRecordsOnGpu, TellWhenEachBucketWasReducedEagerlyAndInGraphs) {
  if (const std::string why = why_no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
  for (const bool graph : {false, true}) {
    for (const bool bf16 : {false, true}) {
      SCOPED_TRACE(testing::Message() << "graph " << graph << ", bf16 " << bf16);
      TrainConfig config = rank_config();
      config.device = {.device = "cuda:0", .graph = graph};
      DdpSettings settings = small_buckets();
      settings.bf16_gradients = bf16;
      const Ddp scheme(settings);
      const StepPrograms programs(spec_of_rank(config, DeviceKind::kCuda, nullptr, 0, 1), &scheme);
      ThreadGroup group(1);
      const auto ranks = group.join(0);
      const auto device = make_cuda_device(config.device, 0);
      StagedCommunicator staged(*ranks, *device);
      CommunicationAccount account(programs, config.training, 2);
      LookedAt looked(account);
      EventRecords events(*device, staged, programs.train().program, account.nodes(), looked);
      looked.watch(events);
      Trainer trainer(config, programs, {&events.device()}, &events.communicator(), nullptr);
      trainer.run(looked);
      EXPECT_EQ(looked.steps, 8);

      const CommunicationSummary summary = account.gather(*ranks, events.clock_error_s());
      EXPECT_EQ(summary.steps, 6);
      EXPECT_EQ(summary.parts.waiting_s, 0) << "there is one rank";
      EXPECT_GT(summary.parts.hidden_s + summary.parts.moving_s, 0);
      std::vector<std::string> names;
      for (const auto& each : summary.collectives) {
        names.push_back(each.name);
        EXPECT_GE(each.ready_before_start_s, 0) << each.name;
      }
      EXPECT_THAT(names, testing::ElementsAre("loss", "bucket 1", "bucket 2", "bucket 3"));
    }
  }
}

}  // namespace
}  // namespace barestep
