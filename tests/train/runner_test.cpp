#include "train/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "core/checker.h"
#include "core/error.h"
#include "core/order.h"
#include "kernels/cpu_device.h"

namespace barestep {
namespace {

constexpr std::int64_t kBytes = bytes_of(DType::kF32);

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

class RunnerTest : public testing::Test {
 protected:
  Tensor take(const char* name, int slots = 1, bool pinned = false) {
    return {buffers_.get(name, Category::kData, kBytes, 0, slots, pinned), 0, 1, 1};
  }
  void start(const std::vector<Program*>& programs, RunnerOptions options = {}) {
    plan_ = std::make_unique<MemoryPlan>(buffers_);
    runner_ = std::make_unique<Runner>(std::array<Device*, 1>{device_.get()}, nullptr, buffers_,
                                       *plan_, options);
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
  std::unique_ptr<MemoryPlan> plan_;
  std::unique_ptr<Runner> runner_;
};

void add(Program& program, Lane lane, Phase phase, DeviceOp op) {
  program.add({.op = std::move(op), .lane = lane, .phase = phase});
}

TEST_F(RunnerTest, PrefetchedInputReachesItsOwnStep) {
  const Tensor host = take("host", 2, true);
  const Tensor x = take("x", 2);
  const Tensor out = take("out", 2, true);
  Program program("copy", buffers_);
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

TEST_F(RunnerTest, APinnedSlotIsRefilledOnlyWhenItsCopyIsDone) {
  const Tensor host = take("host", 2, true);
  const Tensor x = take("x", 2);
  const Tensor out = take("out", 2, true);
  Program program("slow copy", buffers_);
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

TEST_F(RunnerTest, ProgramsTakeTurnsOnTheSameBuffers) {
  const Tensor sum = take("sum");
  const Tensor one = take("one");
  const Tensor bias = take("bias");
  Program set("set", buffers_);
  add(set, Lane::kCopy, Phase::kData, Fill{.out = one, .value = 1});
  add(set, Lane::kCompute, Phase::kForward, Fill{.out = sum, .value = 0});
  Program grow("grow", buffers_);
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

TEST_F(RunnerTest, InputMadeBeforeTheClockIsNotPartOfTheStep) {
  const Tensor x = take("x", 2);
  const Tensor out = take("out");
  Program program("made", buffers_);
  add(program, Lane::kCopy, Phase::kData, Delay{.seconds = 0.03});
  add(program, Lane::kCopy, Phase::kData, Fill{.out = x, .value = 1});
  add(program, Lane::kCompute, Phase::kForward, Copy{.to = out, .from = x});
  start({&program}, {.fetch = Fetch::kBeforeClock});
  Counting input;
  for (int i = 0; i < 3; ++i) {
    EXPECT_LT(runner_->step(program, &program, input).wall_s, 0.02);
  }
}

TEST_F(RunnerTest, TheAccountNamesEveryMillisecond) {
  const Tensor x = take("x", 2);
  const Tensor out = take("out");
  Program program("phases", buffers_);
  add(program, Lane::kCopy, Phase::kData, Delay{.seconds = 0.03});
  add(program, Lane::kCopy, Phase::kData, Fill{.out = x, .value = 1});
  add(program, Lane::kCompute, Phase::kForward, Copy{.to = out, .from = x});
  add(program, Lane::kCompute, Phase::kForward, Delay{.seconds = 0.01});
  add(program, Lane::kCompute, Phase::kBackward, Delay{.seconds = 0.02});
  start({&program});
  Counting input;
  const StepTimes times = runner_->step(program, nullptr, input);
  const auto phase = [&](Phase p) { return times.phase_s[static_cast<std::size_t>(p)]; };
  EXPECT_NEAR(phase(Phase::kData), 0.03, 0.008);
  EXPECT_NEAR(phase(Phase::kForward), 0.01, 0.005);
  EXPECT_NEAR(phase(Phase::kBackward), 0.02, 0.005);
  EXPECT_NEAR(times.wall_s, 0.06, 0.01);
  EXPECT_LT(std::abs(times.residue_s()), 0.003);
  EXPECT_LT(times.idle_s, 0.002);
}

TEST_F(RunnerTest, RefusesAProgramItDoesNotKnow) {
  const Tensor x = take("x");
  Program known("known", buffers_);
  add(known, Lane::kCompute, Phase::kForward, Fill{.out = x, .value = 1});
  start({&known});
  const Program unknown("unknown", buffers_);
  Counting input;
  EXPECT_THROW(runner_->step(unknown, nullptr, input), Error);
}

}  // namespace
}  // namespace barestep
