// The times given by the marks of a runner's steps, for each source of marks.
#include "train/step_marks.h"

#include "core/program.h"
#include "kernels/make_device.h"
#include "support/busy_machine.h"
#include "support/distant_events.h"
#include "support/forwarding_device.h"
#include "support/testing.h"
#include "train/runner.h"

namespace barestep {
namespace {

/// Measures steps 3 and 4 by nodes.
class MiddleSteps final : public StepProfiler {
 public:
  RunDetail detail_of(std::int64_t step) override {
    requested.push_back(step);
    return step == 3 || step == 4 ? RunDetail::kNodes : RunDetail::kRuns;
  }
  void before_work(const Tag& tag, std::string_view label, int device) override {
    EXPECT_EQ(device, 0);
    seen.emplace_back(tag.node, label);
  }
  void after_work() override { ++done; }

  std::vector<std::int64_t> requested;
  std::vector<std::pair<NodeId, std::string>> seen;
  std::size_t done = 0;
};

/// No input; the profiler says how finely steps are measured.
class AskedInput final : public StepInput {
 public:
  explicit AskedInput(StepProfiler& profiler) : profiler_(profiler) {}
  RunDetail detail_of(std::int64_t step) override { return profiler_.detail_of(step); }

 private:
  StepProfiler& profiler_;
};

class NodeRecords final : public RecordSink {
 public:
  void on_record(const Record& record) override { all.push_back(record); }
  std::vector<Record> all;
};

/// Three delays on one lane, with the parameter's value as RunnerOptions::graph.
class Marks : public testing::TestWithParam<bool> {
 protected:
  Marks() {
    for (int i = 0; i < 3; ++i) program_.add({.op = DeviceOp{Delay{.seconds = 1e-4}}});
    buffers_.get("any", Category::kActivations, 64);
    order(program_);
  }
  void run_steps(Device& device, int steps, const std::function<void(const StepTimeline&)>& look) {
    const MemoryPlan plan(buffers_);
    Runner runner(std::array<Device*, 1>{&device}, nullptr, buffers_, plan,
                  {.graph = GetParam(), .profiler = &profiler_});
    runner.add(program_);
    for (int step = 0; step < steps; ++step) {
      runner.step(program_, &program_, input_);
      look(*runner.timeline().at(0));
    }
  }

  std::unique_ptr<Device> device_ = make_cpu_device({.threads = 1});
  Buffers buffers_;
  Program program_{"delays", buffers_};
  MiddleSteps profiler_;
  AskedInput input_{profiler_};
};

TEST_P(Marks, AreOfNodesWhereThatIsAskedFor) {
  run_steps(*device_, 8, [&](const StepTimeline& step) {
    const bool by_nodes = step.step == 3 || step.step == 4;
    ASSERT_EQ(step.spans.size(), by_nodes ? 3U : 1U);
    EXPECT_EQ(step.host.is_graph, GetParam() && step.step > 0) << step.step;
    double free_s = step.host.start_s;
    for (const Span& span : step.spans) {
      EXPECT_GE(span.seconds(), by_nodes ? 1e-4 : 3e-4);
      EXPECT_GE(span.begin_s, free_s);
      EXPECT_GE(span.queued_s, step.host.start_s);
      EXPECT_LE(span.queued_s, span.begin_s);
      EXPECT_GE(span.queued_until_s, span.queued_s);
      EXPECT_LE(span.queued_until_s, step.host.queued_s);
      EXPECT_LE(span.end_s, step.host.end_s);
      if (step.host.is_graph) {
        EXPECT_EQ(span.queued_s, step.spans[0].queued_s) << "in one piece";
        EXPECT_EQ(span.queued_until_s, step.spans[0].queued_until_s);
      }
      free_s = span.end_s;
    }
  });
  EXPECT_EQ(profiler_.requested, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}))
      << "each once, with the input of the step that never comes";
}

TEST_P(Marks, ShowTheProfilerAllThatIsQueued) {
  run_steps(*device_, 4, [](const StepTimeline&) {});
  EXPECT_EQ(profiler_.done, profiler_.seen.size());
  const auto count = [&](NodeId node, const std::string& label) {
    return std::ranges::count(profiler_.seen, std::pair(node, label));
  };
  // One graph is captured for each slot.
  EXPECT_EQ(count(kGraphLaunch, "launch graph"), GetParam() ? 3 : 0);
  for (NodeId node = 0; node < 3; ++node) EXPECT_EQ(count(node, "delay"), GetParam() ? 3 : 4);
}

/// Holds for every device: its events give the same times as its own records.
TEST_P(Marks, ByEventsAreNearTheRecordsOfTheDevice) {
  if (GetParam()) GTEST_SKIP() << "a graph of the CPU's holds no events";
  constexpr double kNear = 0.02;
  repeat_while_busy([&] {
    NodeRecords own;
    DistantEvents device(*device_);
    device_->set_record_sink(&own);
    std::size_t at = 0;
    run_steps(device, 5, [&](const StepTimeline& step) {
      ASSERT_EQ(own.all.size(), at + 3);
      const bool by_nodes = step.spans.size() == 3;
      for (std::size_t i = 0; i < step.spans.size(); ++i) {
        EXPECT_NEAR(step.spans[i].begin_s, own.all[at + i].start_s, kNear);
        EXPECT_NEAR(step.spans[i].end_s, own.all[at + (by_nodes ? i : 2)].end_s, kNear);
        EXPECT_GE(step.spans[i].seconds(), by_nodes ? 1e-4 : 3e-4);
      }
      at += 3;
    });
    device_->set_record_sink(nullptr);
  });
}

INSTANTIATE_TEST_SUITE_P(EagerAndGraph, Marks, testing::Bool());

/// Takes 5 ms on the second device, and has no records of its own.
class LateOnTheSecond final : public Transport {
 public:
  LateOnTheSecond() : Transport(0, 2) {}
  void prepare(const Collective& /*collective*/) override {}
  void run(const Collective& /*collective*/, const Addresses& /*addresses*/,
           std::span<Stream* const> streams, Tag /*tag*/) override {
    streams[1]->call([](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); },
                     nullptr);
  }
};

TEST(StepMarks, MeasureEachPartOfACollectiveInItsStream) {
  const auto first = make_cpu_device({.index = 0, .threads = 1});
  const auto second = make_cpu_device({.index = 1, .threads = 1});
  const std::array<Device*, 2> devices = {first.get(), second.get()};
  Buffers buffers;
  Broadcast broadcast{.root = 0};
  for (const int device : {0, 1}) {
    broadcast.tensors.push_back(
        buffers.tensor(device == 0 ? "a" : "b", Category::kActivations, 1, 4, DType::kF32, device));
  }
  Program program("broadcast", buffers);
  program.add({.op = Collective{broadcast}, .lane = Lane::kComm, .phase = Phase::kCommunication});
  order(program);
  LateOnTheSecond late;
  const MemoryPlan plan(buffers);
  Runner runner(devices, &late, buffers, plan, {});
  runner.add(program);
  StepInput input;
  for (int i = 0; i < 5; ++i) {
    runner.step(program, &program, input);
    const StepTimeline& step = *runner.timeline().at(0);
    ASSERT_EQ(step.spans.size(), 2U);
    EXPECT_GE(step.spans[0].seconds(), 0);
    EXPECT_GE(step.spans[1].seconds(), 5e-3);
  }
}

TEST(StepMarks, KnowNothingOfARunThatNothingTold) {
  const auto cpu = make_cpu_device({.threads = 1});
  FilteredRecords device(*cpu, [](const Record& record) { return record.tag.step < 4; });
  Buffers buffers;
  buffers.get("any", Category::kActivations, 64);
  Program program("delay", buffers);
  program.add({.op = DeviceOp{Delay{.seconds = 1e-4}}});
  order(program);
  const MemoryPlan plan(buffers);
  Runner runner(std::array<Device*, 1>{&device}, nullptr, buffers, plan, {});
  runner.add(program);
  StepInput input;
  for (int step = 0; step < 8; ++step) {
    runner.step(program, &program, input);
    EXPECT_EQ(runner.timeline().at(0)->spans[0].is_known(), step < 4)
        << "not even what an earlier step left";
  }
}

}  // namespace
}  // namespace barestep
