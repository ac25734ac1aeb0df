// The counts and times in the account of DataParallel.
#include "profiler/data_parallel_account.h"

#include "core/program.h"
#include "kernels/make_device.h"
#include "parallel/comm/local_transport.h"
#include "parallel/schemes/data_parallel.h"
#include "support/each_step.h"
#include "support/rank_run.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// 64 rows of 5 numbers in and 3 out, split into 22, 22 and 20 rows.
struct ThreeDevices {
  TrainConfig config;
  DataParallel scheme{3, false};
  std::unique_ptr<StepPrograms> programs;

  explicit ThreeDevices(TrainConfig of_run = rank_config()) : config(std::move(of_run)) {
    config.data.batch_size = 64;
    programs = std::make_unique<StepPrograms>(spec_of(config, DeviceKind::kCpu, nullptr), &scheme);
  }
  [[nodiscard]] const Program& program() const { return programs->train().program; }
};

TEST(Traffic, OfAStarGoesThroughDevice0) {
  const ThreeDevices three;
  const std::int64_t flat = three.programs->parameter_list().bytes();
  const std::int64_t x = 5 * 4;
  const std::int64_t y = 3 * 4;
  const Traffic traffic = traffic_of(three.program(), 4, Route::kStar);
  EXPECT_THAT(traffic.bytes, ElementsAre(2 * flat, 42 * (x + y), 42 * y, 2 * flat));
  EXPECT_THAT(traffic.in_bytes,
              ElementsAre(2 * flat + 42 * y, flat + 22 * (x + y), flat + 20 * (x + y), 0));
  EXPECT_THAT(traffic.out_bytes,
              ElementsAre(2 * flat + 42 * (x + y), flat + 22 * y, flat + 20 * y, 0));
}

TEST(Traffic, OfARingGoesFromNeighborToNeighbor) {
  const ThreeDevices three;
  const std::int64_t flat = three.programs->parameter_list().bytes();
  const Traffic traffic = traffic_of(three.program(), 3, Route::kRing);
  EXPECT_EQ(traffic.bytes[0], 2 * flat);
  EXPECT_EQ(traffic.out_bytes[0], flat + 42 * 8 * 4);
  EXPECT_EQ(traffic.in_bytes[1], 2 * flat + 22 * 8 * 4);
}

// Each lane's nodes are in one run, and only nodes with nothing in between share a run.
TEST(RunPlan, CoversEveryNodeOnce) {
  const ThreeDevices three;
  const Program& program = three.program();
  const RunPlan plan(program);
  for (NodeId id = 0; id < program.size(); ++id) {
    const Node& node = program.nodes()[static_cast<std::size_t>(id)];
    const auto lanes = lanes_of(program, node);
    ASSERT_EQ(plan.runs_of(id).size(), lanes.size());
    for (std::size_t part = 0; part < lanes.size(); ++part) {
      const NodeRun& run = plan.runs()[plan.runs_of(id)[part]];
      EXPECT_EQ(run.lane, lanes[part]);
      EXPECT_EQ(run.phase, node.phase);
      EXPECT_TRUE(run.first <= id && id <= run.last);
      EXPECT_TRUE(id == run.first || node.waits.empty());
    }
  }
}

/// Two devices that pause, which gives a lower bound on times.
TEST(StepTimeline, MeasuresPausesOnTheDeviceThatMakesThem) {
  Buffers buffers;
  for (const int device : {0, 1}) buffers.get("any", Category::kActivations, 64, device);
  Program program("pauses", buffers);
  const auto add = [&](int device, double seconds, Phase phase) {
    program.add({.op = DeviceOp{Delay{seconds}}, .device = device, .phase = phase});
  };
  add(0, 0.002, Phase::kForward);
  add(1, 0.004, Phase::kForward);
  add(0, 0.001, Phase::kForward);
  add(0, 0.005, Phase::kBackward);
  const auto first = make_cpu_device({.index = 0, .threads = 1});
  const auto second = make_cpu_device({.index = 1, .name = "two", .threads = 1});
  EXPECT_EQ(second->name(), "two");
  const std::array<Device*, 2> devices = {first.get(), second.get()};
  const MemoryPlan plan(buffers);
  Runner runner(devices, nullptr, buffers, plan, {});
  runner.add(program);
  StepInput input;
  for (int step = 0; step < 5; ++step) {
    runner.step(program, &program, input);
    const StepTimeline& done = *runner.timeline().at(0);
    std::map<std::pair<int, Phase>, double> seconds;
    for (std::size_t i = 0; i < done.spans.size(); ++i) {
      const NodeRun& run = done.plan->runs()[i];
      seconds[{run.lane.device, run.phase}] += done.spans[i].end_s - done.spans[i].begin_s;
    }
    ASSERT_EQ(seconds.size(), 3U);
    EXPECT_GE((seconds[{0, Phase::kForward}]), 0.003);
    EXPECT_GE((seconds[{1, Phase::kForward}]), 0.004);
    EXPECT_GE((seconds[{0, Phase::kBackward}]), 0.005);
  }
}

/// The account of a run.
std::string account_text(ThreeDevices& three) {
  std::vector<std::unique_ptr<Device>> opened;
  std::vector<Device*> devices;
  for (int i = 0; i < 3; ++i) {
    opened.push_back(make_cpu_device({.index = i, .threads = 1}));
    devices.push_back(opened.back().get());
  }
  LocalTransport local(devices, std::nullopt);
  const std::vector<std::string> names = {"cpu:0", "cpu:1", "cpu:2"};
  // The host waits for every second step only after the next one is queued.
  three.config.training.log_every = 2;
  three.config.injected.delay_ms = 0;
  Trainer trainer(three.config, *three.programs, devices, {nullptr, &local}, nullptr);
  DataParallelAccount account(
      *three.programs, three.scheme.split(three.programs->spec().batch_size), names, Route::kStar);
  EXPECT_EQ(account.text(), "");
  EachStep observer([&](const StepReport& report) { account.add(report); });
  trainer.run(observer);
  return account.text();
}

TEST(DataParallelAccount, ShowsEachDeviceAndExchangeAndComparesDevice0) {
  ThreeDevices three;
  const std::string text = account_text(three);
  EXPECT_THAT(
      text, AllOf(HasSubstr("DataParallel, mean of a step of "), HasSubstr("\n  cpu:0     22  "),
                  HasSubstr("\n  cpu:1     22  "), HasSubstr("\n  cpu:2     20  "),
                  HasSubstr("\n  broadcast "), HasSubstr("\n  scatter "), HasSubstr("\n  gather "),
                  HasSubstr("\n  reduce "), HasSubstr("cpu:0 is busy ")));
  const MemoryPlan plan(three.programs->buffers());
  const double others = static_cast<double>(plan.device_bytes(1) + plan.device_bytes(2)) / 2;
  EXPECT_THAT(
      text,
      HasSubstr(std::to_string(static_cast<double>(plan.device_bytes(0)) / others).substr(0, 3)));
  EXPECT_THAT(text, HasSubstr("    forward       loss   backward  "));
}

TEST(DataParallelAccount, ShowsWhatDevicesRecompute) {
  TrainConfig config = rank_config();
  config.model.layers = {5, 8, 7, 6, 3};
  config.training.recompute = 2;
  ThreeDevices three(config);
  EXPECT_THAT(account_text(three), HasSubstr("    forward       loss  recompute   backward  "));
}

}  // namespace
}  // namespace barestep
