#include "train/runner.h"

#include <system_error>

#include "core/checker.h"
#include "core/error.h"
#include "core/program.h"
#include "kernels/make_device.h"
#include "profiler/account.h"
#include "support/busy_machine.h"
#include "support/forwarding_device.h"
#include "support/testing.h"

namespace barestep {
namespace {

constexpr std::int64_t kBytes = bytes_of(DType::kF32);

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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

/// With the parameter's value as RunnerOptions::graph.
class RunnerTest : public testing::TestWithParam<bool> {
 protected:
  Tensor take(const char* name, int slots = 1, bool pinned = false) {
    return {buffers_.get(name, Category::kData, kBytes, 0, slots, pinned), 0, 1, 1};
  }
  /// Outlives the runner, which may have queued the input of a step that never runs.
  Program& new_program(const char* name) { return programs_.emplace_back(name, buffers_); }
  void start(const std::vector<Program*>& programs, Fetch fetch = Fetch::kAhead) {
    plan_ = std::make_unique<MemoryPlan>(buffers_);
    runner_ = std::make_unique<Runner>(std::array<Device*, 1>{device_.get()}, nullptr, buffers_,
                                       *plan_, RunnerOptions{.fetch = fetch, .graph = GetParam()});
    for (Program* program : programs) {
      order(*program);
      ASSERT_THAT(check(*program), IsEmpty());
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

/// A device that may start one stream.
class OneStream final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::unique_ptr<Stream> new_stream(std::string_view label) override {
    if (has_started_) throw std::system_error(EAGAIN, std::generic_category());
    has_started_ = true;
    return inner().new_stream(label);
  }

 private:
  bool has_started_ = false;
};

TEST_P(RunnerTest, EndsWhereALaneCannotStart) {
  const Tensor out = take("out");
  Program& program = new_program("copy");
  add(program, Lane::kCopy, Phase::kData, Fill{.out = out});
  const auto whole = std::exchange(device_, nullptr);
  device_ = std::make_unique<OneStream>(*whole);
  EXPECT_THROW(start({&program}), std::system_error);
  runner_.reset();
  device_.reset();
}

/// A device that runs two ops as one launch if no more may join.
class Joining final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::size_t joins(std::span<const DeviceOp* const> ops) override {
    offered.push_back(ops.size());
    return ops.size() == 2 ? 2 : 1;
  }
  void run_joined(std::span<const DeviceOp* const> ops, const Addresses& addresses, Stream& stream,
                  Tag tag) override {
    for (const DeviceOp* const op : ops) {
      inner().run(*op, addresses, stream, tag);
      ++tag.node;
    }
  }
  std::vector<std::size_t> offered;
};

/// The second copy waits for input, and may be part of a launch that waits for it; the last one
/// waits for work that follows the first.
TEST_P(RunnerTest, JoinsNeighborsThatWaitForNothingBetweenThem) {
  const Tensor host = take("host", 2, true);
  const Tensor x = take("x", 2), late = take("late", 2), other = take("other");
  const Tensor outs[] = {take("out", 2, true), take("out2", 2, true), take("out3", 2, true)};
  Program& program = new_program("joined");
  add(program, Lane::kCopy, Phase::kData, Copy{.to = x, .from = host});
  add(program, Lane::kCopy, Phase::kData, Delay{.seconds = 0.005});
  add(program, Lane::kCopy, Phase::kData, Copy{.to = late, .from = host});
  add(program, Lane::kCompute, Phase::kForward, Copy{.to = outs[0], .from = x});
  add(program, Lane::kCompute, Phase::kForward, Copy{.to = outs[1], .from = late});
  add(program, Lane::kComm, Phase::kForward, Copy{.to = other, .from = outs[0]});
  add(program, Lane::kCompute, Phase::kForward, Copy{.to = outs[2], .from = other});
  const auto whole = std::exchange(device_, nullptr);
  auto joining = std::make_unique<Joining>(*whole);
  const Joining& device = *joining;
  device_ = std::move(joining);
  start({&program});
  EXPECT_THAT(device.offered, testing::ElementsAre(2, 3, 2)) << "and the input";
  Counting input(host);
  for (std::int64_t step = 0; step < 6; ++step) {
    runner_->step(program, nullptr, input);
    for (const Tensor& out : outs) EXPECT_EQ(value(out, step), static_cast<float>(step));
  }
  runner_.reset();
  device_.reset();
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

TEST_P(RunnerTest, InputIsFetchedAheadWhenOneStepIsUnfinished) {
  const Tensor host = take("host", 2, true);
  const Tensor x = take("x", 2);
  const Tensor out = take("out", 2, true);
  Program& program = new_program("copy");
  add(program, Lane::kCopy, Phase::kData, Copy{.to = x, .from = host});
  add(program, Lane::kCompute, Phase::kForward, Copy{.to = out, .from = x});
  start({&program});
  Counting input(host);
  runner_->queue_step(program, &program, input);
  EXPECT_EQ(input.filled.size(), 2U);
  runner_->queue_step(program, &program, input);
  EXPECT_EQ(input.filled.size(), 2U) << "step 0 may still read the slot of step 2";
  EXPECT_FALSE(runner_->has_fetched_next());
  runner_->finish_step();
  EXPECT_EQ(input.filled.size(), 3U);
  EXPECT_TRUE(runner_->has_fetched_next());
  EXPECT_EQ(value(out, 0), 0.0F);
  runner_->queue_step(program, nullptr, input);
  runner_->finish_step();
  runner_->finish_step();
  EXPECT_EQ(input.filled.size(), 3U) << "no step follows";
  EXPECT_EQ(value(out, 2), 2.0F);
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
  // Two steps are queued before they are finished: the fill of step 2 runs while step 0 may still
  // wait for its copy from the same slot.
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
  add(grow, Lane::kCompute, Phase::kForward,
      BiasActivation{.values = sum, .bias = bias, .activation = Activation::kNone});
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
    runner_->step(program, &program, input);
    const double all_s = now_s() - begin_s;
    EXPECT_GE(all_s - runner_->timeline().wall_of_newest(kMainLane).seconds(), kDelay_s)
        << "the clock starts when the input is there";
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
    runner_->step(program, nullptr, input);
    const StepAccount account = account_of(runner_->timeline(), kMainLane);
    EXPECT_GE(account[Part::kForward], 0.002);
    EXPECT_GE(account[Part::kBackward], 0.004);
    EXPECT_GE(account.wall_s, 0.012);
    const double parts_s = std::accumulate(account.part_s.begin(), account.part_s.end(), 0.0);
    EXPECT_NEAR(parts_s, account.wall_s, 1e-12);
    const double unexplained_s = account[Part::kHost] + account[Part::kIdle];
    EXPECT_NEAR(parts_s,
                account[Part::kDataWait] + account[Part::kForward] + account[Part::kBackward] +
                    unexplained_s,
                1e-12)
        << "parts that the program does not have";
    EXPECT_LT(unexplained_s, 0.002);
    EXPECT_GT(account[Part::kDataWait], 0.004);
  });
}

/// Work on two lanes within a step is synchronized only by waits.
TEST_P(RunnerTest, TwoLanesOverlapAndMeet) {
  const Tensor host = take("host", 2, true);
  const Tensor x = take("x", 2);
  const Tensor message = take("message");
  const Tensor out = take("out", 2, true);
  Program& program = new_program("two lanes");
  add(program, Lane::kCopy, Phase::kData, Copy{.to = x, .from = host});
  add(program, Lane::kComm, Phase::kCommunication, Copy{.to = message, .from = x});
  add(program, Lane::kComm, Phase::kCommunication, Delay{.seconds = 0.02});
  add(program, Lane::kCompute, Phase::kBackward, Delay{.seconds = 0.02});
  add(program, Lane::kCompute, Phase::kOptimizer, Copy{.to = out, .from = message});
  start({&program});
  Counting input(host);
  const auto overlap_in = [&](std::int64_t step) {
    runner_->step(program, &program, input);
    EXPECT_EQ(value(out, step), static_cast<float>(step));
    const StepTimeline& done = *runner_->timeline().at(0);
    const auto span = [&](NodeId node) { return done.spans[done.plan->runs_of(node).front()]; };
    EXPECT_GE(span(4).begin_s, span(1).end_s);
    return span(2).begin_s < span(3).end_s && span(3).begin_s < span(2).end_s;
  };
  std::int64_t step = 0;
  while (step < 4) overlap_in(step++);
  repeat_while_busy([&] { EXPECT_TRUE(overlap_in(step++)); });
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
