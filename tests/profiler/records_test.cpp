#include "profiler/records.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <set>
#include <thread>

#include "core/order.h"
#include "kernels/cpu_device.h"
#include "profiler/gpu_event_records.h"
#include "profiler/profiled_communicator.h"
#include "profiler/profiled_device.h"
#include "support/busy_machine.h"
#include "train/runner.h"

namespace barestep {
namespace {

Record record_of(std::int64_t step, NodeId node) {
  return {.tag = {.program = 0, .step = step, .node = node}, .label = "gemm"};
}

TEST(RecordBuffer, CountsWhatDoesNotFit) {
  RecordBuffer buffer(3);
  for (NodeId node = 0; node < 5; ++node) buffer.add(record_of(0, node));
  ASSERT_EQ(buffer.kept().size(), 3U);
  EXPECT_EQ(buffer.kept()[2].tag.node, 2);
  EXPECT_EQ(buffer.dropped(), 2);
}

TEST(RecordBuffer, LosesNothingThatManyThreadsAdd) {
  constexpr int kThreads = 4;
  constexpr int kEach = 1000;
  RecordBuffer buffer(kThreads * kEach);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&buffer, thread] {
      for (int i = 0; i < kEach; ++i) buffer.add(record_of(thread, i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::pair<std::int64_t, NodeId>> seen;
  for (const Record& record : buffer.kept()) seen.insert({record.tag.step, record.tag.node});
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kThreads * kEach));
  EXPECT_EQ(buffer.dropped(), 0);
}

TEST(RecordCollector, KeepsItsStepsOnly) {
  RecordCollector collector({.first = 2, .end = 4}, 100);
  for (std::int64_t step = 0; step < 6; ++step) {
    collector.on_record(record_of(step, 0));
    collector.on_queued(record_of(step, 0));
  }
  ASSERT_EQ(collector.records().size(), 2U);
  EXPECT_EQ(collector.records()[0].tag.step, 2);
  EXPECT_EQ(collector.records()[1].tag.step, 3);
  EXPECT_EQ(collector.queued().size(), 2U);
  EXPECT_EQ(collector.dropped(), 0);
}

TEST(RecordCollector, ForgetsMoreThanItsMemoryHolds) {
  RecordCollector collector({.first = 0, .end = 1}, 1);
  for (std::int64_t i = 0; i < 100'000; ++i) collector.on_record(record_of(1, 0));
  EXPECT_EQ(collector.records().size(), 0U);
  EXPECT_EQ(collector.dropped(), 0);
}

class NoInput final : public StepInput {
 public:
  void fill(std::int64_t, const Program&, const Addresses&) override {}
};

/// Three delays on one lane, run for some steps with the device profiled in the middle ones.
class ProfiledDeviceTest : public testing::TestWithParam<bool> {
 protected:
  void run_steps(std::int64_t first, std::int64_t end, bool on) {
    profiled_.turn(on);
    for (std::int64_t step = first; step < end; ++step) runner().step(program_, nullptr, input_);
  }
  Runner& runner() {
    if (!runner_) {
      for (int i = 0; i < 3; ++i) program_.add({.op = DeviceOp{Delay{.seconds = 1e-4}}});
      order(program_);
      plan_ = std::make_unique<MemoryPlan>(buffers_);
      runner_ = std::make_unique<Runner>(std::array<Device*, 1>{&profiled_}, nullptr, buffers_,
                                         *plan_, RunnerOptions{.graph = GetParam()});
      runner_->add(program_);
    }
    return *runner_;
  }

  std::unique_ptr<Device> device_ = make_cpu_device({.threads = 1});
  RecordCollector collector_{{.first = 0, .end = 100}, 1000};
  ProfiledDevice profiled_{*device_, collector_};
  Buffers buffers_;
  Program program_{"delays", buffers_};
  NoInput input_;
  std::unique_ptr<MemoryPlan> plan_;
  std::unique_ptr<Runner> runner_;
};

TEST_P(ProfiledDeviceTest, RecordsWorkAndWhenItWasQueuedWhileItIsOn) {
  run_steps(0, 3, false);
  run_steps(3, 5, true);
  run_steps(5, 8, false);
  ASSERT_EQ(collector_.records().size(), 6U);
  ASSERT_EQ(collector_.queued().size(), GetParam() ? 2U : 6U);
  for (const Record& record : collector_.records()) {
    EXPECT_TRUE(record.tag.step == 3 || record.tag.step == 4);
    EXPECT_EQ(record.label, "delay");
    EXPECT_GE(record.end_s - record.start_s, 1e-4);
    for (const Record& queued : collector_.queued()) {
      if (queued.tag.step != record.tag.step) continue;
      EXPECT_EQ(queued.label, GetParam() ? "launch graph" : "delay");
      if (queued.tag.node == record.tag.node || queued.tag.node == kGraphLaunch) {
        EXPECT_LE(queued.start_s, record.start_s);
      }
    }
  }
}

/// Both listen to the same device.
TEST_P(ProfiledDeviceTest, HandsRecordsToWhoeverElseListens) {
  RecordCollector other({.first = 0, .end = 100}, 1000);
  profiled_.set_record_sink(&other);
  run_steps(0, 2, false);
  run_steps(2, 3, true);
  profiled_.set_record_sink(nullptr);
  run_steps(3, 4, true);
  EXPECT_EQ(other.records().size(), 9U);
  EXPECT_EQ(collector_.records().size(), 6U);
}

INSTANTIATE_TEST_SUITE_P(EagerAndGraph, ProfiledDeviceTest, testing::Bool());

TEST(RecordCollector, LeavesOutPiecesOfOtherWork) {
  RecordCollector collector({.first = 0, .end = 1}, 10);
  collector.on_record(record_of(0, kPartOfNode));
  EXPECT_TRUE(collector.records().empty());
}

/// Two devices of one process: a communicator without records of its own is measured in its
/// streams' order.
TEST(ProfiledCommunicatorTest, MeasuresEachPartInItsStream) {
  class Late final : public Communicator {
   public:
    [[nodiscard]] int rank() const override { return 0; }
    [[nodiscard]] int size() const override { return 2; }
    void prepare(const Collective&) override {}
    void run(const Collective&, const Addresses&, std::span<Stream* const> streams, Tag) override {
      streams[1]->call([](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); },
                       nullptr);
    }
    void broadcast(std::span<std::byte>, int) override {}
    void all_gather(std::span<const std::byte>, std::span<std::byte>) override {}
    void barrier() override {}
    [[nodiscard]] std::string poll_error() override { return ""; }
    void abort(ExitCode) noexcept override {}
  } late;
  const auto device = make_cpu_device({.threads = 1});
  RecordCollector collector({.first = 0, .end = 10}, 100);
  const ProfiledDevice profiled(*device, collector);
  ProfiledCommunicator communicator(late, collector, profiled);
  const Tensor tensor{.buffer = 0, .offset_bytes = 0, .rows = 1, .cols = 4};
  const Collective collective = Broadcast{.tensors = {tensor, tensor}, .root = 0};
  communicator.prepare(collective);
  const auto first = device->new_stream("a");
  const auto second = device->new_stream("b");
  const std::array<Stream*, 2> streams{first.get(), second.get()};
  const auto run = [&](std::int64_t step) {
    communicator.run(collective, {}, streams, {.program = 0, .step = step, .node = 3});
    for (Stream* stream : streams) stream->synchronize();
  };
  run(0);
  communicator.turn(true);
  for (std::int64_t step = 1; step < 6; ++step) run(step);  // more than there are marks
  communicator.turn(false);
  run(7);
  ASSERT_EQ(collector.records().size(), 10U);
  EXPECT_EQ(collector.queued().size(), 10U);
  for (const Record& record : collector.records()) {
    EXPECT_EQ(record.label, "broadcast");
    EXPECT_EQ(record.tag.node, 3);
    const double took_s = record.end_s - record.start_s;
    EXPECT_GE(took_s, record.device == 1 ? 5e-3 : 0.0);
  }
}

/// What every device can do: its events tell the times that its own records have.
void expect_events_near_records() {
  const auto device = make_cpu_device({.threads = 1});
  RecordCollector own({.first = 0, .end = 10}, 100);
  RecordCollector by_events({.first = 0, .end = 10}, 100);
  GpuEventRecords events({device.get()}, by_events, "a test");
  EXPECT_EQ(events.source(), "CUDA events, to about a microsecond: a test");
  const auto stream = device->new_stream("a");
  const DeviceOp op = Delay{.seconds = 2e-3};
  device->set_record_sink(&own);
  events.turn(true, true);
  for (std::int64_t step = 0; step < 5; ++step) {
    const Tag tag{.program = 0, .step = step, .node = 1};
    events.begin(tag, "delay", 0, *stream);
    device->run(op, {}, *stream, tag);
    events.end(0, *stream);
    if (step == 2) events.collect();
  }
  stream->synchronize();
  events.finish();
  ASSERT_EQ(by_events.records().size(), 5U);
  constexpr double kNear = 0.02;
  for (std::size_t i = 0; i < 5; ++i) {
    const Record& event = by_events.records()[i];
    EXPECT_EQ(event.tag.step, static_cast<std::int64_t>(i));
    EXPECT_GE(event.end_s - event.start_s, 2e-3);
    EXPECT_NEAR(event.start_s, own.records()[i].start_s, kNear);
    EXPECT_NEAR(event.end_s, own.records()[i].end_s, kNear);
  }
}

TEST(EventRecordsTest, AreNearTheRecordsOfTheDevice) {
  repeat_while_busy(expect_events_near_records);
}

}  // namespace
}  // namespace barestep
