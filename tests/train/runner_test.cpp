#include "train/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "core/checker.h"
#include "core/error.h"
#include "core/order.h"
#include "kernels/cpu_device.h"
#include "support/busy_machine.h"

namespace barestep {
namespace {

constexpr std::int64_t kBytes = bytes_of(DType::kF32);

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// When each node of each step ran.
class Intervals final : public RecordSink {
 public:
  void on_record(const Record& record) override {
    const std::lock_guard lock(mutex_);
    records_[{record.tag.step, record.tag.node}] = record;
  }
  Record of(std::int64_t step, NodeId node) {
    const std::lock_guard lock(mutex_);
    return records_.at({step, node});
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::int64_t, NodeId>, Record> records_;
};

/// Input that writes the step's number into a pinned slot, if there is one.
class Counting final : public StepInput {
 public:
  explicit Counting(std::optional<Tensor> slot = {}) : slot_(slot) {}
  void fill(std::int64_t step, const Program& /*program*/, const Addresses& addresses) override {
    filled.push_back(step);
    if (slot_) *addresses.at(*slot_) = static_cast<float>(step);
  }
  std::vector<std::int64_t> filled;

 private:
  std::optional<Tensor> slot_;
};

/// With the value of the parameter as RunnerOptions::graph.
class RunnerTest : public testing::TestWithParam<bool> {
 protected:
  Tensor take(const char* name, int slots = 1, bool pinned = false) {
    return {buffers_.get(name, Category::kData, kBytes, 0, slots, pinned), 0, 1, 1};
  }
  /// Outlives the runner, which may have queued the input of a step that never comes.
  Program& new_program(const char* name) { return programs_.emplace_back(name, buffers_); }
  void start(const std::vector<Program*>& programs, Fetch fetch = Fetch::kAhead) {
    plan_ = std::make_unique<MemoryPlan>(buffers_);
    runner_ = std::make_unique<Runner>(std::array<Device*, 1>{device_.get()}, nullptr, buffers_,
                                       *plan_, RunnerOptions{.fetch = fetch, .graph = GetParam()});
    for (Program* program : programs) {
      order(*program);
      ASSERT_THAT(check(*program), testing::IsEmpty());
      runner_->add(*program);
    }
  }
  float value(const Tensor& tensor, std::int64_t step = 0) {
    return *runner_->addresses(step).at(tensor);
  }

  std::unique_ptr<Device> device_ = make_cpu_device({.threads = 1});
  Buffers buffers_;
  std::deque<Program> programs_;
  std::unique_ptr<MemoryPlan> plan_;
  std::unique_ptr<Runner> runner_;
};

void add(Program& program, Lane lane, Phase phase, DeviceOp op) {
  program.add({.op = std::move(op), .lane = lane, .phase = phase});
}

TEST_P(RunnerTest, PrefetchedInputReachesItsOwnStep) {
  const Tensor host = take("host", 2, true);
  const Tensor x = take("x", 2);
  const Tensor out = take("out", 2, true);
  Program& program = new_program("copy");
  add(program, Lane::kCopy, Phase::kData, Delay{.seconds = 0.002});
  add(program, Lane::kCopy, Phase::kData, Copy{.to = x, .from = host});
  add(program, Lane::kCompute, Phase::kForward, Copy{.to = out, .from = x});
  start({&program});
  Counting input(host);
  for (std::int64_t step = 0; step < 20; ++step) {
    runner_->step(program, &program, input);
    EXPECT_EQ(value(out, step), static_cast<float>(step));
  }
  EXPECT_EQ(input.filled.size(), 21U) << "every step's input is fetched one step ahead";
}

TEST_P(RunnerTest, APinnedSlotIsRefilledOnlyWhenItsCopyIsDone) {
  const Tensor host = take("host", 2, true);
  const Tensor x = take("x", 2);
  const Tensor out = take("out", 2, true);
  Program& program = new_program("slow copy");
  add(program, Lane::kCopy, Phase::kData, Delay{.seconds = 0.01});
  add(program, Lane::kCopy, Phase::kData, Copy{.to = x, .from = host});
  add(program, Lane::kCompute, Phase::kForward, Copy{.to = out, .from = x});
  start({&program});
  Counting input(host);
  // Two steps are queued ahead of their finish: the fill of step 2 comes while step 0 may still
  // wait for its copy out of the same slot.
  runner_->queue_step(program, &program, input);
  for (std::int64_t step = 0; step < 10; ++step) {
    runner_->queue_step(program, &program, input);
    runner_->finish_step();
    EXPECT_EQ(value(out, step), static_cast<float>(step));
  }
  runner_->finish_step();
}

TEST_P(RunnerTest, ProgramsTakeTurnsOnTheSameBuffers) {
  const Tensor sum = take("sum");
  const Tensor one = take("one");
  const Tensor bias = take("bias");
  Program& set = new_program("set");
  add(set, Lane::kCopy, Phase::kData, Fill{.out = one, .value = 1});
  add(set, Lane::kCompute, Phase::kForward, Fill{.out = sum, .value = 0});
  Program& grow = new_program("grow");
  add(grow, Lane::kCopy, Phase::kForward, Copy{.to = bias, .from = one});
  add(grow, Lane::kCompute, Phase::kForward, BiasRelu{.values = sum, .bias = bias, .relu = false});
  start({&set, &grow});
  Counting input;
  runner_->step(set, &grow, input);
  for (int i = 0; i < 5; ++i) runner_->step(grow, &grow, input);
  EXPECT_EQ(value(sum), 5.0F);
  runner_->step(set, nullptr, input);
  EXPECT_EQ(value(sum), 0.0F);
}

TEST_P(RunnerTest, InputMadeBeforeTheClockIsNotPartOfTheStep) {
  constexpr double kDelay_s = 0.01;
  const Tensor x = take("x", 2);
  const Tensor out = take("out");
  Program& program = new_program("made");
  add(program, Lane::kCopy, Phase::kData, Delay{.seconds = kDelay_s});
  add(program, Lane::kCopy, Phase::kData, Fill{.out = x, .value = 1});
  add(program, Lane::kCompute, Phase::kForward, Copy{.to = out, .from = x});
  start({&program}, Fetch::kBeforeClock);
  Counting input;
  for (int i = 0; i < 5; ++i) {
    const double begin_s = now_s();
    const StepTimes times = runner_->step(program, &program, input);
    const double all_s = now_s() - begin_s;
    EXPECT_GE(all_s - times.wall_s, kDelay_s) << "the clock starts when the input is there";
  }
  EXPECT_EQ(input.filled.size(), 5U) << "nothing is fetched ahead";
}

TEST_P(RunnerTest, TheAccountNamesEveryMillisecond) {
  const Tensor x = take("x", 2);
  const Tensor out = take("out");
  Program& program = new_program("phases");
  add(program, Lane::kCopy, Phase::kData, Delay{.seconds = 0.006});
  add(program, Lane::kCopy, Phase::kData, Fill{.out = x, .value = 1});
  add(program, Lane::kCompute, Phase::kForward, Copy{.to = out, .from = x});
  add(program, Lane::kCompute, Phase::kForward, Delay{.seconds = 0.002});
  add(program, Lane::kCompute, Phase::kBackward, Delay{.seconds = 0.004});
  start({&program});
  Counting input;
  repeat_while_busy([&] {
    const StepTimes times = runner_->step(program, nullptr, input);
    const auto phase = [&](Phase p) { return times.phase_s[static_cast<std::size_t>(p)]; };
    EXPECT_GE(phase(Phase::kForward), 0.002);
    EXPECT_GE(phase(Phase::kBackward), 0.004);
    EXPECT_GE(times.wall_s, 0.012);
    EXPECT_GE(times.idle_s, 0);
    EXPECT_GE(times.residue_s(), -1e-9) << "no part is counted twice";
    const double parts_s = std::accumulate(times.phase_s.begin(), times.phase_s.end(), 0.0);
    EXPECT_NEAR(parts_s, phase(Phase::kData) + phase(Phase::kForward) + phase(Phase::kBackward),
                1e-12)
        << "phases that the program has not";
    EXPECT_LT(times.idle_s + times.residue_s(), 0.002);
    EXPECT_GT(phase(Phase::kData), 0.004);
  });
}

/// On a GPU's critical chain each event costs about as much as a small kernel.
TEST_P(RunnerTest, PhasesThatFollowEachOtherShareTheEventBetweenThem) {
  const Tensor host = take("host", 2, true);
  const Tensor x = take("x", 2);
  const Tensor out = take("out");
  const Tensor message = take("message");
  Program& program = new_program("phases");
  add(program, Lane::kCopy, Phase::kData, Copy{.to = x, .from = host});
  add(program, Lane::kCompute, Phase::kForward, Copy{.to = out, .from = x});
  add(program, Lane::kCompute, Phase::kBackward, Fill{.out = out, .value = 1});
  add(program, Lane::kComm, Phase::kReduce, Copy{.to = message, .from = out});
  add(program, Lane::kCompute, Phase::kOptimizer, Copy{.to = out, .from = message});
  start({&program});
  std::vector<Device*> devices{device_.get()};
  std::map<LaneId, std::unique_ptr<Stream>> streams;
  const PreparedProgram prepared(program, 0, devices, [&](const LaneId& lane) {
    auto& stream = streams[lane];
    if (stream == nullptr) stream = device_->new_stream("lane");
    return stream.get();
  });
  ASSERT_EQ(prepared.borders.size(), 3U);
  EXPECT_FALSE(prepared.borders[0].shares_begin) << "it waits for data";
  EXPECT_TRUE(prepared.borders[1].shares_begin);
  EXPECT_EQ(prepared.borders[1].begin[0], nullptr);
  EXPECT_FALSE(prepared.borders[2].shares_begin) << "it waits for communication";
  Counting input(host);
  for (int i = 0; i < 4; ++i) {
    EXPECT_GE(runner_->step(program, &program, input).residue_s(), -1e-9);
  }
}

/// Work of two lanes inside a step meets where waits say so, and nowhere else.
TEST_P(RunnerTest, TwoLanesOverlapAndMeet) {
  const Tensor host = take("host", 2, true);
  const Tensor x = take("x", 2);
  const Tensor message = take("message");
  const Tensor out = take("out", 2, true);
  Program& program = new_program("two lanes");
  add(program, Lane::kCopy, Phase::kData, Copy{.to = x, .from = host});
  add(program, Lane::kComm, Phase::kReduce, Copy{.to = message, .from = x});
  add(program, Lane::kComm, Phase::kReduce, Delay{.seconds = 0.02});
  add(program, Lane::kCompute, Phase::kBackward, Delay{.seconds = 0.02});
  add(program, Lane::kCompute, Phase::kOptimizer, Copy{.to = out, .from = message});
  start({&program});
  Intervals intervals;
  device_->set_record_sink(&intervals);  // until the runner is gone, with what it queued ahead
  Counting input(host);
  const auto overlap_in = [&](std::int64_t step) {
    runner_->step(program, &program, input);
    EXPECT_EQ(value(out, step), static_cast<float>(step));
    EXPECT_GE(intervals.of(step, 4).start_s, intervals.of(step, 1).end_s);
    const Record comm = intervals.of(step, 2);
    const Record compute = intervals.of(step, 3);
    return comm.start_s < compute.end_s && compute.start_s < comm.end_s;
  };
  std::int64_t step = 0;
  while (step < 4) overlap_in(step++);
  repeat_while_busy([&] { EXPECT_TRUE(overlap_in(step++)); });
  runner_.reset();
}

TEST_P(RunnerTest, RefusesAProgramItDoesNotKnow) {
  const Tensor x = take("x");
  Program& known = new_program("known");
  add(known, Lane::kCompute, Phase::kForward, Fill{.out = x, .value = 1});
  start({&known});
  const Program unknown("unknown", buffers_);
  Counting input;
  EXPECT_THROW(runner_->step(unknown, nullptr, input), Error);
}

INSTANTIATE_TEST_SUITE_P(EagerAndGraph, RunnerTest, testing::Bool(),
                         [](const auto& run) { return run.param ? "graph" : "eager"; });

}  // namespace
}  // namespace barestep
