#include "lab/predict/prediction.h"

#include "core/program.h"
#include "core/rank_checker.h"
#include "lab/made_up.h"
#include "lab/predict/machine_card.h"
#include "lab/predict/simulator.h"
#include "lab/predict/workload.h"
#include "lab/study/experiment.h"
#include "lab/study/measured_card.h"
#include "lab/study/prediction_errors.h"
#include "support/expect_error.h"
#include "support/testing.h"
#include "train/pass_schedule.h"
#include "train/schedule.h"

namespace barestep {
namespace {

const MachineCard kH200 = load_card("h200-nvlink");

/// A second for each product, and for each large sum of gradients as many as given.
std::function<double(const Node&)> seconds_of_sums(double sum_s) {
  return [sum_s](const Node& node) {
    if (const auto* sum = op_if<AllReduce>(node.op)) {
      return sum->tensors.front().size() > 1000 ? sum_s : 0.0;
    }
    return op_if<Gemm>(node.op) == nullptr ? 0.0 : 1.0;
  };
}

/// A step of DDP calculated by hand, in which only products and sums of gradients take time.
TEST(Simulator, OverlapsCommunicationWithBackward) {
  const Workload workload = made_up_workload(1024, 2, SchemeKind::kDdp, 2);
  const WorkloadPrograms programs(workload);
  // Forward 2; backward: weight gradient and input gradient of layer 1, weight gradient of layer 0.
  EXPECT_DOUBLE_EQ(simulate(programs.step(), seconds_of_sums(0)).step_s, 5);
  const SimulatedStep step = simulate(programs.step(), seconds_of_sums(3));
  EXPECT_DOUBLE_EQ(step.account[Part::kForward], 2);
  EXPECT_DOUBLE_EQ(step.account[Part::kBackward], 3);
  double sum = 0;
  for (const double part : step.account.part_s) sum += part;
  EXPECT_DOUBLE_EQ(sum, step.step_s);
  // The first bucket is complete at 3 and reduced by 6, the second complete at 5 and reduced by 9.
  EXPECT_DOUBLE_EQ(step.step_s, 9);
  EXPECT_DOUBLE_EQ(step.account[Part::kExposedCommunication], 4);
}

/// Two lanes that compete for the core that computes.
TEST(Simulator, SharesCoresAmongLanes) {
  const Workload workload = made_up_workload(1024, 2, SchemeKind::kDdp, 2);
  const WorkloadPrograms programs(workload);
  // As above, the first bucket is complete at 3. The two remaining products of backward share the
  // core with its sum, so both take twice as long, until 7. Then one second of the sum is left, and
  // three seconds of the other bucket's sum.
  const SimulatedStep shared = simulate(programs.step(), seconds_of_sums(3), {.at_once = 1});
  EXPECT_DOUBLE_EQ(shared.step_s, 11) << "all the work of one core";
  EXPECT_DOUBLE_EQ(shared.account[Part::kBackward], 5);
  EXPECT_DOUBLE_EQ(shared.account[Part::kExposedCommunication], 4);
  EXPECT_DOUBLE_EQ(simulate(programs.step(), seconds_of_sums(3), {.at_once = 2}).step_s, 9)
      << "a core for each lane";
  EXPECT_DOUBLE_EQ(simulate(programs.step(), seconds_of_sums(3), {.at_once = 0.5}).step_s, 22)
      << "two ranks on a core";
  // Four of the eleven seconds, in which both lanes need the core, take twice as long.
  EXPECT_DOUBLE_EQ(
      simulate(programs.step(), seconds_of_sums(3), {.at_once = 1, .contention = 2}).step_s, 15);
}

/// The same with lanes that sleep where they wait for another one.
TEST(Simulator, WakesLanesThatHaveWaited) {
  const Workload workload = made_up_workload(1024, 2, SchemeKind::kDdp, 2);
  const WorkloadPrograms programs(workload);
  // The first sum begins half a second after its bucket is complete at 3, and the second sum right
  // after it at 6.5. The update waits for it until 9.5, and wakes up.
  const SimulatedStep step = simulate(programs.step(), seconds_of_sums(3), {.wake_s = 0.5});
  EXPECT_DOUBLE_EQ(step.step_s, 10);
  EXPECT_DOUBLE_EQ(step.account[Part::kBackward], 3);
  EXPECT_DOUBLE_EQ(step.account[Part::kExposedCommunication], 4.5);
  EXPECT_DOUBLE_EQ(step.account[Part::kIdle], 0.5);
  EXPECT_DOUBLE_EQ(simulate(programs.step(), seconds_of_sums(3), {.wakes = {{1, 0.5}}}).step_s, 9)
      << "there is no other device";
}

// The second stage waits for what the first one copies, and the first for the gradient.
TEST(Simulator, WakesADeviceThatHasWaitedForAnother) {
  Workload workload = made_up_workload(1024, 2, SchemeKind::kDataParallel, 2);
  workload.config.parallel.pipeline = 2;
  workload.config.parallel.schedule = PipelineSchedule::kNaive;
  workload.config.parallel.micro_batches = 1;
  const WorkloadPrograms programs(workload);
  const auto seconds = [](const Node& node) { return op_if<Gemm>(node.op) == nullptr ? 0.0 : 1.0; };
  EXPECT_DOUBLE_EQ(simulate(programs.step(), seconds).step_s, 5);
  EXPECT_DOUBLE_EQ(simulate(programs.step(), seconds, {.wakes = {{1, 0.5}}}).step_s, 6);
}

TEST(Simulator, NeedsNoCoreForAPause) {
  Workload workload = made_up_workload(8, 1, SchemeKind::kDdp, 2);
  workload.config.injected.delay_ms = 10;
  const WorkloadPrograms programs(workload);
  const auto pause = [](const Node& node) {
    const auto* op = std::get_if<DeviceOp>(&node.op);
    const auto* delay = op == nullptr ? nullptr : std::get_if<Delay>(op);
    return delay == nullptr ? 0.0 : delay->seconds;
  };
  EXPECT_DOUBLE_EQ(simulate(programs.step(), pause, {.at_once = 0.5}).step_s, 0.01);
}

/// The programs of all stages of a pipeline of ranks, each stage with one layer.
class PipelineOfLayers {
 public:
  PipelineOfLayers(int stages, PipelineSchedule schedule, int micro_batches) {
    Workload workload = made_up_workload(16, stages, SchemeKind::kDdp, stages);
    workload.config.data.batch_size = 240;  // divisible by the numbers of micro-batches
    workload.config.parallel.pipeline = stages;
    workload.config.parallel.schedule = schedule;
    workload.config.parallel.micro_batches = micro_batches;
    for (int rank = 0; rank < stages; ++rank) {
      programs_.push_back(std::make_unique<WorkloadPrograms>(workload, rank));
      ranks_.push_back({programs_.back()->step(), mesh_of(workload).with_rank(rank)});
    }
  }

  [[nodiscard]] const std::vector<RankProgram>& ranks() const { return ranks_; }

  /// A forward pass takes 1, a backward pass 2 in every stage, although the first layer has no
  /// gradient of its input; exchanges take `exchange`.
  [[nodiscard]] static NodeSeconds passes(double exchange) {
    return [exchange](const Program&, const Node& node) {
      if (op_if<SendReceive>(node.op) != nullptr) return exchange;
      if (op_if<Gemm>(node.op) == nullptr) return 0.0;
      return node.phase == Phase::kBackward && node.block == "net.0" ? 2.0 : 1.0;
    };
  }

 private:
  std::vector<std::unique_ptr<WorkloadPrograms>> programs_;
  std::vector<RankProgram> ranks_;
};

TEST(JointSimulator, HasTheBubbleOfEqualStages) {
  using enum PipelineSchedule;
  for (const PipelineSchedule schedule : {kOneForwardOneBackward, kGPipe, kNaive}) {
    for (const int stages : {2, 3, 4, 5}) {
      for (const int micro_batches : {1, 2, 3, 5, 8, 16}) {
        SCOPED_TRACE(fmt::format("{}, {} stages, {} micro-batches", name_of(schedule), stages,
                                 micro_batches));
        const PipelineOfLayers layers(stages, schedule, micro_batches);
        const auto steps = simulate(layers.ranks(), PipelineOfLayers::passes(0));
        const PipelineSpec spec{stages, micro_batches, schedule};
        for (const SimulatedStep& step : steps) {
          EXPECT_DOUBLE_EQ(step.account[Part::kForward], micro_batches);
          EXPECT_DOUBLE_EQ(step.account[Part::kBackward], 2 * micro_batches);
          EXPECT_NEAR(step.account.waits_for_others_s() / step.step_s, ideal_bubble(spec), 1e-12);
        }
      }
    }
  }
}

// By hand: stage 0 runs forward until 1 and 2; the first activations arrive at 1.5. Stage 1 runs
// forward until 2.5 and backward until 4.5; then its gradient and the second activations cross,
// until 5. It ends its second backward pass at 8; the gradient arrives at 8.5, two before the end.
TEST(JointSimulator, BeginsAnExchangeWhenBothStagesHaveReachedIt) {
  const PipelineOfLayers layers(2, PipelineSchedule::kOneForwardOneBackward, 2);
  const auto steps = simulate(layers.ranks(), PipelineOfLayers::passes(0.5));
  ASSERT_EQ(steps.size(), 2U);
  std::vector<std::pair<double, double>> met[2];
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const Program& program = layers.ranks()[rank].program;
    for (NodeId id = 0; id < program.size(); ++id) {
      if (op_if<SendReceive>(program.node(id).op) == nullptr) continue;
      const NodeSpan& span = steps[rank].spans[static_cast<std::size_t>(id)];
      met[rank].emplace_back(span.begin_s, span.end_s);
    }
  }
  EXPECT_EQ(met[0], met[1]);
  EXPECT_THAT(met[0], ElementsAre(std::pair(1.0, 1.5), std::pair(4.5, 5.0), std::pair(8.0, 8.5)));
  EXPECT_DOUBLE_EQ(steps[0].step_s, 10.5);
}

TEST(JointSimulator, RefusesRanksThatWaitForEachOther) {
  Buffers buffers;
  const auto sum = [&](Program& program, Axis axis) {
    const std::string name(name_of(axis));
    program.add({.op = AllReduce{.tensors = {buffers.tensor(program.name() + name,
                                                            Category::kCommunication, 1, 4)},
                                 .axis = axis,
                                 .name = name},
                 .lane = Lane::kComm});
  };
  Program one("one", buffers), other("other", buffers);
  for (const Axis axis : {Axis::kAll, Axis::kTensor}) sum(one, axis);
  for (const Axis axis : {Axis::kTensor, Axis::kAll}) sum(other, axis);
  const Mesh mesh{.tensor = 2};
  const std::vector<RankProgram> ranks = {{one, mesh}, {other, mesh.with_rank(1)}};
  expect_error(ExitCode::kBug, "a program's nodes wait for each other",
               [&] { simulate(ranks, [](const Program&, const Node&) { return 1.0; }); });
}

TEST(OpRates, AreInterpolatedInTheLogarithms) {
  const std::vector<OpRate> rates = {{"gemm nt", 16, 256, 1e9},
                                     {"gemm nt", 64, 256, 4e9},
                                     {"gemm nt", 16, 1024, 1e9},
                                     {"gemm nt", 64, 1024, 16e9},
                                     {"adam", 1, 1000, 5e9}};
  const auto rate_of = [&](double rows, double width) {
    return 1 / op_s({.op = "gemm nt", .rows = rows, .width = width, .work = 1}, rates);
  };
  EXPECT_NEAR(rate_of(64, 256), 4e9, 1);
  EXPECT_NEAR(rate_of(32, 256), 2e9, 1);
  EXPECT_NEAR(rate_of(64, 512), 8e9, 1);
  EXPECT_NEAR(rate_of(4096, 8192), 16e9, 1) << "the nearest, beyond";
  EXPECT_NEAR(op_s({.op = "adam", .width = 7, .work = 10e9}, rates), 2, 1e-9);
  EXPECT_EQ(op_s({.op = "sgd", .width = 7, .work = 10e9}, rates), 0);
}

// The weights of a product are in a cache, or in none.
TEST(OpRates, AreInterpolatedInTheReach) {
  const std::vector<OpRate> rates = {{"gemm nt", 8, 64, 8e9, 1e4},  {"gemm nt", 8, 64, 8e9, 1e6},
                                     {"gemm nt", 8, 256, 8e9, 1e6}, {"gemm nt", 8, 256, 2e9, 1e8},
                                     {"adam", 1, 1e6, 8e9},         {"adam", 1, 1e8, 2e9},
                                     {"copy", 1, 1e2, 1e9},         {"copy", 1, 1e6, 4e9}};
  const auto rate_of = [&](const char* op, double width, double reach) {
    return 1 / op_s({.op = op, .rows = 8, .width = width, .work = 1, .reach = reach}, rates);
  };
  EXPECT_NEAR(rate_of("gemm nt", 256, 1e3), 8e9, 1);
  EXPECT_NEAR(rate_of("gemm nt", 256, 1e7), 4e9, 1);
  EXPECT_NEAR(rate_of("gemm nt", 256, 1e9), 2e9, 1) << "the nearest, beyond";
  EXPECT_NEAR(rate_of("gemm nt", 128, 1e8), 4e9, 1) << "between the farthest of both widths";
  EXPECT_NEAR(rate_of("adam", 1e6, 0), 8e9, 1);
  EXPECT_NEAR(rate_of("adam", 1e6, 1e7), 4e9, 1) << "as if its own bytes were as many";
  EXPECT_NEAR(rate_of("adam", 1e6, 1e8), 2e9, 1);
  EXPECT_NEAR(rate_of("copy", 1e2, 1e6), 1e9, 1) << "a short op is not faster far away";
}

constexpr std::int64_t kReachMiB = std::int64_t{1} << 20;

/// Copies of 1 MiB to where nothing else is: two MiB each, by the numbers of their places.
std::vector<Reach> reaches_of_copies(const std::vector<int>& places) {
  Buffers buffers;
  Program program("copies", buffers);
  for (const int place : places) {
    const auto tensor = [&](const char* name) {
      return buffers.tensor(name + std::to_string(place), Category::kData, 1, kReachMiB / 4);
    };
    const Tensor to = tensor("to "), from = tensor("from ");
    program.add({.op = DeviceOp{Copy{.to = to, .from = from}}});
  }
  return reaches_of(program);
}

TEST(Reaches, CountTheBytesFromOneUseToTheNext) {
  std::vector<double> bytes;
  for (const Reach& reach : reaches_of_copies({0, 1, 2, 2, 0})) {
    EXPECT_EQ(reach.own, 2 * kReachMiB);
    bytes.push_back(reach.bytes / kReachMiB);
  }
  // The first follows the last of the step before; the others, more than there are places, of which
  // there are three.
  EXPECT_THAT(bytes, ElementsAre(2, 6, 6, 2, 6));
}

// A layer's weights take 16 KiB. A forward pass follows the update, which has gone through those of
// all layers, the first one's last.
TEST(Reaches, TellNarrowLayersApart) {
  Workload workload = made_up_workload(64, 40);
  workload.config.data.batch_size = 1;
  workload.config.training.update = Update::kSeparate;
  const WorkloadPrograms programs(workload);
  const std::vector<Reach> reaches = reaches_of(programs.step());
  double sum = 0;
  for (NodeId id = 0; id < programs.step().size(); ++id) {
    const Node& node = programs.step().node(id);
    if (node.phase != Phase::kForward || op_if<Gemm>(node.op) == nullptr) continue;
    sum += at(reaches, id).bytes;
  }
  EXPECT_GT(sum / 40, 40 * 4.0 * 64 * 65);
}

/// The mean reach of a stage's products of this kind in one pass.
double reach_of_products(std::int64_t micro_batches, bool first) {
  Workload workload = made_up_workload(1024, 4, SchemeKind::kDdp, 2);
  workload.config.data.batch_size = 64;
  workload.config.parallel.pipeline = 2;
  workload.config.parallel.micro_batches = micro_batches;
  const WorkloadPrograms programs(workload);
  const std::vector<Reach> reaches = reaches_of(programs.step());
  double sum = 0;
  int products = 0;
  for (NodeId id = 0; id < programs.step().size(); ++id) {
    const Node& node = programs.step().node(id);
    if (node.phase != Phase::kForward || op_if<Gemm>(node.op) == nullptr) continue;
    if ((node.micro_batch == 0) != first) continue;
    sum += at(reaches, id).bytes;
    ++products;
  }
  return sum / products;
}

// A stage of two layers has 8 MiB of weights, as much of their gradients, and twice as much of
// Adam's state; a backward pass goes through the second layer's gradient and weights and the first
// layer's gradient. So a forward pass finds the first layer's weights after 20 MiB, its own among
// them, and the second layer's after 12; but the second micro-batch, right after the first, finds
// both after 8. The first micro-batch follows the update, which goes through 32 MiB, the last
// layer's first: 10 MiB in the mean of the first layer, 30 of the second.
TEST(Reaches, OfAStageAreItsLayersBetweenMicroBatches) {
  // Of the whole batch: of two layers, and their gradients.
  constexpr double kActivations = 4 * 0.25 * kReachMiB;
  EXPECT_NEAR(reach_of_products(8, false), (8 + 6 * 16) / 7.0 * kReachMiB, kActivations);
  EXPECT_NEAR(reach_of_products(8, true), 20 * kReachMiB, kActivations);
  EXPECT_NEAR(reach_of_products(1, true), 20 * kReachMiB, kActivations);
}

TEST(OpRates, OfProductsThatAddAreTheirOwnUnlessACardHasNone) {
  Gemm gemm = {
      .c = {0, 0, 256, 256}, .a = {0, 0, 64, 256}, .b = {0, 0, 64, 256}, .transpose_a = true};
  const double plain_s = op_s(size_of(gemm), std::vector<OpRate>{{"gemm tn", 64, 256, 2e9}});
  gemm.beta = 1;
  std::vector<OpRate> rates = {{"gemm tn", 64, 256, 2e9}};
  const double flops = 2.0 * 64 * 256 * 256 + 2 * 256 * 256;  // with the additions
  EXPECT_NEAR(op_s(size_of(gemm), rates), flops / 2e9, 1e-9);
  EXPECT_NEAR(plain_s, 2.0 * 64 * 256 * 256 / 2e9, 1e-9);
  rates.push_back({"gemm tn added", 64, 256, 1e9});
  EXPECT_NEAR(op_s(size_of(gemm), rates), flops / 1e9, 1e-9);
}

TEST(OpRates, TellProductsApartByTheirOperands) {
  Workload workload = made_up_workload(128, 2);
  workload.config.data.batch_size = 32;
  const WorkloadPrograms programs(workload);
  std::vector<std::string> products;
  for (const Node& node : programs.step().nodes()) {
    const OpSize size = size_of(std::get<DeviceOp>(node.op));
    if (!size.op.starts_with("gemm")) continue;
    products.push_back(size.op);
    EXPECT_EQ(size.rows, 32);
    EXPECT_EQ(size.width, 128);
    EXPECT_NEAR(size.work, 2.0 * 32 * 128 * 128, 2 * 32 * 128) << "and bias, ReLU";
  }
  EXPECT_THAT(products, ElementsAre("gemm nt", "gemm nt", "gemm tn", "gemm nn", "gemm tn"));
}

// Training includes the gradient of the bias in that of ReLU; cards of before have only the latter.
TEST(OpRates, TellAGradientWithSumsFromOneWithout) {
  const Workload workload = made_up_workload(256, 2);
  const WorkloadPrograms programs(workload);
  const auto& nodes = programs.step().nodes();
  const auto gradient = std::ranges::find_if(
      nodes, [](const Node& node) { return label_of(node.op) == "relu_grad"; });
  ASSERT_NE(gradient, nodes.end());
  const OpSize size = size_of(std::get<DeviceOp>(gradient->op));
  EXPECT_EQ(size.op, "relu_grad with sums");
  MachineCard card{.name = "a core", .on_gpu = false, .node_ranks = 1};
  card.loads = {{.rates = {{"copy", 1, 1, 1e9}, {"relu_grad", 1, 1, 2e9}}}};
  const auto seconds = [&] { return node_s(programs.step(), *gradient, card, {.threads = 1}); };
  EXPECT_NEAR(seconds(), size.work / 2e9, 1e-9 * seconds());
  card.loads.front().rates.push_back({"relu_grad with sums", 1, 1, 4e9});
  EXPECT_NEAR(seconds(), size.work / 4e9, 1e-9 * seconds());
}

/// A measured machine with two cores: a product runs at 100 or at 60 GFLOP/s; everything else takes
/// only the host's time.
MachineCard two_cores() {
  MachineCard card{.name = "two cores",
                   .on_gpu = false,
                   .flops_per_s = 100e9,
                   .memory_bytes_per_s = 10e9,
                   .node_ranks = 2};
  const auto rates = [](double product) {
    std::vector<OpRate> all = {{"copy", 1, 1, 1e18}};
    for (const char* op : {"gemm nt", "gemm nn", "gemm tn"}) all.push_back({op, 64, 256, product});
    return all;
  };
  card.loads = {{.ranks = 1, .threads = 2, .host_s = 1e-3, .rates = rates(100e9)},
                {.ranks = 1, .threads = 1, .host_s = 1e-3, .rates = rates(60e9)},
                {.ranks = 2, .threads = 1, .host_s = 2e-3, .rates = rates(50e9)}};
  SecondsByBytes& sums = card.loads.back().exchanges[ExchangeKind::kAllReduce];
  sums = {{4, 1e-9}, {1 << 20, 1e-3}, {4 << 20, 4e-3}};
  card.node.tables[ExchangeKind::kAllReduce] = {{2, sums}};
  return card;
}

TEST(MeasuredMachines, PredictRunsByTheLoadThatIsNearest) {
  const MachineCard card = two_cores();
  EXPECT_EQ(card.load_of(1, 2), &card.loads[0]);
  EXPECT_EQ(card.load_of(1, 1), &card.loads[1]);
  EXPECT_EQ(card.load_of(4, 1), &card.loads[2]);
  EXPECT_EQ(card.load_of(2, 3), &card.loads[2]);
  EXPECT_EQ(kH200.load_of(2, 0), nullptr);
  const double flops = 5 * 2.0 * 64 * 1024 * 1024;  // for two layers
  const Workload one = made_up_workload(1024, 2);
  EXPECT_NEAR(predicted_run(one, card).step_s, flops / 100e9 + 1e-3, 1e-5);
  Workload rank = one;
  rank.config.parallel.scheme = SchemeKind::kDdp;
  rank.config.device.threads = 1;
  EXPECT_NEAR(predicted_run(rank, card).step_s, flops / 60e9 + 1e-3, 1e-5);
  // Two ranks have half of the rows each, and sum 8 MiB in two buckets on the cores that also
  // compute.
  rank.ranks = 2;
  EXPECT_NEAR(predicted_run(rank, card).step_s, flops / 2 / 50e9 + 8e-3 + 2e-3, 1e-4);
}

// Each of two ranks draws half of x and y, 32 x 1024 numbers each, on the core that also computes.
// The host sleeps until a step ends, and its lanes until the host has queued the next one.
TEST(MeasuredMachines, WakeTheHostAndTheDevice) {
  MachineCard card = two_cores();
  const Workload workload = made_up_workload(1024, 2), tiny = made_up_workload(1, 2);
  const SimulatedStep before = predicted_run(workload, card);
  const double tiny_s = predicted_run(tiny, card).step_s;
  for (MachineLoad& load : card.loads) load.wake_s = 50e-6;
  const SimulatedStep after = predicted_run(workload, card);
  EXPECT_NEAR(after.step_s, before.step_s + 100e-6, 1e-9);
  EXPECT_NEAR(after.account[Part::kIdle], 100e-6, 1e-9);
  EXPECT_NEAR(predicted_run(tiny, card).step_s, tiny_s + 100e-6, 1e-9);
}

TEST(MeasuredMachines, PriceTheNumbersThatRanksDraw) {
  MachineCard card = two_cores();
  Workload workload = made_up_workload(1024, 2, SchemeKind::kDdp, 2);
  workload.config.device.threads = 1;
  const double before_s = predicted_run(workload, card).step_s;
  card.loads.back().rates.push_back({"randn", 1, 1, 1e9});
  const auto state = static_cast<double>(state_bytes(Generator::kTorchCpu));
  const double draws_s = 2 * (32 * 1024 * 4 + 2 * state) / 1e9;
  EXPECT_NEAR(predicted_run(workload, card).step_s, before_s + draws_s, 1e-5);
  // With a core for each lane they are hidden, up to where they take longer than the step.
  workload.config.parallel.scheme = SchemeKind::kSingle;
  workload.ranks = 1;
  for (MachineLoad& load : card.loads) load.rates.push_back({"randn", 1, 1, 1e9});
  const SimulatedStep hidden = predicted_run(workload, card);
  EXPECT_EQ(hidden.account[Part::kDataWait], 0);
  for (MachineLoad& load : card.loads) load.rates.back().rate = 1e6;
  const SimulatedStep waits = predicted_run(workload, card);
  EXPECT_NEAR(waits.step_s, 1e-3 + 2 * (64 * 1024 * 4) / 1e6, 0.02);
  EXPECT_NEAR(waits.account[Part::kDataWait], waits.step_s - hidden.step_s, 1e-5);
}

TEST(MeasuredMachines, PredictTheMeanOfARoundOfLocalSgd) {
  const auto step_s = [](std::int64_t every) {
    Workload workload = made_up_workload(1024, 2, SchemeKind::kDdp, 2);
    workload.config.device.threads = 1;
    workload.config.parallel.sync_every = every;
    const SimulatedStep step = predicted_run(workload, two_cores());
    double sum_s = 0;
    for (const double part_s : step.account.part_s) sum_s += part_s;
    EXPECT_NEAR(sum_s, step.step_s, 1e-9);
    return step.step_s;
  };
  // Every second step averages 8 MiB of weights, or every eighth. The host takes 1 ms more where
  // ranks exchange.
  const double averaged_s = 8e-3 + 1e-3;
  EXPECT_NEAR(step_s(2) - step_s(8), averaged_s * (1.0 / 2 - 1.0 / 8), 1e-4);
  EXPECT_NEAR(step_s(4) - step_s(8), averaged_s * (1.0 / 4 - 1.0 / 8), 1e-4);
  EXPECT_NEAR(step_s(8), step_s(1) - averaged_s * (1 - 1.0 / 8), 1e-4);
}

// Updates of ranks that are not in step meet as often as a rank updates.
TEST(MeasuredMachines, HaveUpdatesOfLocalSgdMeetByChance) {
  Workload workload = made_up_workload(1024, 2, SchemeKind::kDdp, 2);
  workload.config.device.threads = 1;
  workload.config.training.update = Update::kSeparate;
  workload.config.parallel.sync_every = 1'000'000;
  const auto step_of = [&](double alone, double together) {
    MachineCard card = two_cores();
    for (MachineLoad& load : card.loads) {
      load.rates.push_back({"adam", 1, 1, load.ranks == 1 ? alone : together});
    }
    return predicted_run(workload, card);
  };
  const SimulatedStep alone = step_of(10e9, 10e9), together = step_of(5e9, 5e9);
  const double share =
      together.account[Part::kOptimizer] / (together.step_s - together.account[Part::kHost]);
  EXPECT_GT(share, 0.2);
  const SimulatedStep met = step_of(10e9, 5e9);
  EXPECT_NEAR(met.step_s, alone.step_s + share * (together.step_s - alone.step_s), 1e-6);
}

// The only difference between micro-batches of a pipeline and an accumulated step is how far their
// weights are.
TEST(MeasuredMachines, PriceProductsByTheCacheOfTheirWeights) {
  MachineCard card = two_cores();
  for (MachineLoad& load : card.loads) {
    std::vector<OpRate> far = load.rates;
    for (OpRate& rate : load.rates) rate.reach = 23.0 * kReachMiB;
    for (OpRate& rate : far) {
      rate.rate /= rate.op == "copy" ? 1 : 4;
      rate.reach = 24.0 * kReachMiB;
    }
    load.rates.insert(load.rates.end(), far.begin(), far.end());
  }
  Workload workload = made_up_workload(1024, 4, SchemeKind::kDdp, 2);
  workload.config.device.threads = 1;
  workload.config.data.batch_size = 64;
  workload.config.parallel.pipeline = 2;
  workload.config.parallel.micro_batches = 8;
  const double layer_s = 2.0 * 8 * 1024 * 1024 / 50e9;  // of eight rows
  const double forward_s = predicted_run(workload, card).account[Part::kForward];
  EXPECT_NEAR(forward_s, (15 + 4) * layer_s, layer_s) << "the second layer's first pass is far";
}

TEST(MeasuredMachines, AddWhatAnActivationInAProductCosts) {
  MachineCard card = two_cores();
  std::vector<OpRate>& rates = card.loads.front().rates;
  rates.insert(rates.end(), {{"bias_relu", 1, 1, 8e9}, {"bias_tanh", 1, 1, 2e9}});
  const auto seconds_of = [&](Activation activation) {
    const Tensor c{.rows = 64, .cols = 1024};
    const Gemm product{.c = c,
                       .a = c,
                       .b = {.rows = 1024, .cols = 1024},
                       .transpose_b = true,
                       .activation = activation};
    return device_op_s(product, card, {.threads = 2});
  };
  const double bytes = 2.0 * 64 * 1024 * 4;  // read and written
  EXPECT_NEAR(seconds_of(Activation::kTanh) - seconds_of(Activation::kRelu),
              bytes / 2e9 - bytes / 8e9, 1e-5);
  EXPECT_NEAR(seconds_of(Activation::kGelu), seconds_of(Activation::kRelu), 5e-6) << "not measured";
}

TEST(MeasuredMachines, PriceAttentionByItsFormAndLength) {
  MachineCard card = two_cores();
  card.loads.front().rates.insert(card.loads.front().rates.end(),
                                  {{"attention standard", 128, 64, 1e9},
                                   {"attention standard", 1024, 64, 4e9},
                                   {"attention flash", 128, 64, 8e9}});
  const auto flops_per_s = [&](AttentionForm form, std::int64_t length) {
    const AttentionShape shape{.heads = 2, .length = length, .form = form};
    const DeviceOp op = Attention{.out = {.rows = length, .cols = 128},
                                  .kept = {.rows = length, .cols = shape.kept_cols()},
                                  .qkv = {.rows = length, .cols = 3 * 128},
                                  .shape = shape};
    return static_cast<double>(flops_of(op)) / device_op_s(op, card, {.threads = 2});
  };
  EXPECT_NEAR(flops_per_s(AttentionForm::kStandard, 128), 1e9, 1);
  EXPECT_NEAR(flops_per_s(AttentionForm::kStandard, 4096), 4e9, 4) << "the nearest rate";
  EXPECT_NEAR(flops_per_s(AttentionForm::kFlash, 1024), 8e9, 8);
}

// A process with several devices updates on the first one, which then has the memory for itself,
// and stages, of one layer here, update while others compute.
TEST(MeasuredMachines, PriceAnUpdateAsThatOfTheOnlyDeviceAtWork) {
  MachineCard card = two_cores();
  card.loads[1].rates.push_back({"adam", 1, 1, 4e9});
  card.loads[2].rates.push_back({"adam", 1, 1, 1e9});
  const double bytes = 28.0 * 2 * (1024 * 1024 + 1024);
  const auto optimizer_s = [&](SchemeKind scheme, int stages = 1) {
    Workload workload = made_up_workload(1024, 2, scheme, 2);
    workload.config.device.threads = 1;
    workload.config.parallel.pipeline = stages;
    return predicted_run(workload, card).account[Part::kOptimizer];
  };
  EXPECT_NEAR(optimizer_s(SchemeKind::kDataParallel), bytes / 4e9, 1e-4);
  EXPECT_NEAR(optimizer_s(SchemeKind::kDdp), bytes / 1e9, 1e-4);
  EXPECT_NEAR(optimizer_s(SchemeKind::kDdp, 2), bytes / 2 / 4e9, 1e-4);
}

// Each link carries 2 (N - 1) / N of the bytes in and out, one after the other on a single lane.
TEST(Simulator, LetsServersBeginWhileOthersAreServed) {
  const SimulatedStep step =
      predicted_step(asked("--batch-size 512 --scheme server --servers 8"), kH200, 8);
  const double model_bytes = 4.0 * 6 * (8192.0 * 8192 + 8192);
  const double each_s = exchange_s(kH200, ExchangeKind::kSendReceive, model_bytes / 8, 2);
  EXPECT_LT(step.account[Part::kExposedCommunication], 2 * 0.6 * 8 * 7 * each_s)
      << "without a second server at work, it takes 8 times 7 exchanges in and out";
}

// Two ranks on one GPU, as in experiments on a machine with one GPU.
TEST(MeasuredMachines, PredictRanksThatShareAGpu) {
  MachineCard card = two_cores();
  card.on_gpu = true;
  card.node_ranks = 1;
  card.node.tables = {};
  card.loads.resize(1);
  card.loads.front().threads = 0;
  Workload workload = made_up_workload(1024, 2, SchemeKind::kDdp, 2);
  workload.on_gpu = true;
  EXPECT_GT(predicted_run(workload, card).step_s, 0);
}

TEST(MeasuredMachines, SayThatCommunicationTakesCores) {
  const Findings findings = predict_scaling(asked("--dim 256"), two_cores(), {1, 2});
  EXPECT_EQ(findings.tables.at(1).rows.at(0).back(), "a share of the cores, 1.00x as long");
}

TEST(MeasuredMachines, PredictWhatLoadingThreadsCannotHide) {
  Workload loading = made_up_workload(64, 1);
  read_data_set(loading.config.data, "data");
  loading.config.data.workers = 0;
  loading.config.data.io_delay_ms = 50;
  const double in_step = predicted_run(loading, two_cores()).step_s;
  EXPECT_NEAR(in_step, 0.051, 1e-3);
  loading.config.data.workers = 2;
  EXPECT_NEAR(predicted_run(loading, two_cores()).step_s, 0.025, 1e-3);
}

TEST(MeasuredMachines, ForeseeEveryCaseOfEveryExperiment) {
  for (const Experiment& experiment : experiments()) {
    Setting setting = new_setting(true, false, 2);
    setting.data = "data";
    for (const Case& each : experiment.cases(setting)) {
      EXPECT_GT(predicted_run(each.workload, two_cores()).step_s, 0)
          << experiment.name << " " << each.key;
    }
  }
}

TEST(PredictionFindings, CountRunsWithinTheCoresAndNameWhatIsOff) {
  const Experiment& amdahl = experiment_of("amdahl");
  Setting setting = made_up_setting();
  setting.units = 2;
  Results results = made_up(amdahl, setting, [](const Case&) {
    return MadeUpStep{.step_s = 0.1, .phase_s = {{"forward", 0.03}, {"backward", 0.07}}};
  });
  EXPECT_FALSE(prediction_summary({&results}).has_value());
  EXPECT_TRUE(prediction_findings({&results}).timed.empty());
  for (const double backward : {0.075, 0.107, 9.0}) {  // 4 ranks are beyond the cores
    SimulatedStep step{.step_s = 0.03 + backward};
    step.account[Part::kForward] = 0.03;
    step.account[Part::kBackward] = backward;
    results.predictions.push_back(step);
  }
  const auto summary = prediction_summary({&results});
  EXPECT_EQ(summary.value().runs, 2);
  EXPECT_EQ(summary.value().beyond_cores, 1);
  EXPECT_NEAR(summary.value().median_error, (0.05 + 0.37) / 2, 1e-3);
  EXPECT_EQ(summary.value().within_tenth, 0.5);
  EXPECT_NEAR(summary.value().worst_error, 0.37, 1e-3);
  EXPECT_NEAR(summary.value().p90_error, 0.05 + 0.9 * 0.32, 2e-3);
  const Findings findings = prediction_findings({&results});
  EXPECT_THAT(
      sentences_of(findings),
      AllOf(HasSubstr("The simulation's median error over 2 distinct predictions within the "
                      "cores is 21.0 % (goal"),
            HasSubstr("1 prediction is off by more than a tenth; the part with the largest "
                      "error is backward in 1 of them."),
            HasSubstr("1 prediction beyond the cores is shown"),
            HasSubstr("The 90th percentile of the errors is 33.8 %, the worst 37.0 %.")));
  EXPECT_THAT(findings.tables.front().rows,
              ElementsAre(ElementsAre("ddp", "2", "21.0 %", "33.8 %", "37.0 %", "-")));
  const auto& cases = findings.tables.back().rows;
  EXPECT_EQ(cases.at(0).back(), "beyond the cores") << "the worst first";
  EXPECT_EQ(cases.at(1).at(4), "backward +37.0 ms");
  EXPECT_EQ(cases.at(2).at(3), "+5.0 %");
}

// One rank takes 0.1 s and two take 0.08 s, or as predicted the other way round.
TEST(PredictionFindings, CountTheDirectionsThatAreRight) {
  Setting setting = made_up_setting();
  setting.units = 2;
  for (const bool is_right : {true, false}) {
    Results results = made_up(experiment_of("amdahl"), setting, [](const Case& what) {
      return MadeUpStep{.step_s = what.workload.ranks == 1 ? 0.1 : 0.08};
    });
    for (const double predicted_s : {is_right ? 0.1 : 0.07, 0.075, 9.0}) {
      results.predictions.push_back(SimulatedStep{.step_s = predicted_s});
    }
    const auto summary = prediction_summary({&results});
    EXPECT_EQ(summary.value().pairs, 1) << "4 ranks are beyond the cores";
    EXPECT_EQ(summary.value().right_pairs, is_right ? 1 : 0);
    EXPECT_EQ(prediction_findings({&results}).tables.front().rows.front().back(),
              is_right ? "1 of 1" : "0 of 1");
  }
}

// As bench/predictions.py names them.
TEST(PredictionFindings, TellSchemesApart) {
  std::vector<Results> all;
  for (const char* name :
       {"batch-sweep", "sharding", "dp-vs-ddp", "local-sgd", "pipeline", "model-parallel"}) {
    all.push_back(made_up(experiment_of(name), made_up_setting(),
                          [](const Case&) { return MadeUpStep{.step_s = 0.1}; }));
    all.back().predictions.resize(all.back().cases.size(), SimulatedStep{.step_s = 0.1});
  }
  std::vector<const Results*> results;
  for (const Results& each : all) results.push_back(&each);
  std::set<std::string> schemes;
  const Findings findings = prediction_findings(results);
  for (const auto& row : findings.tables.front().rows) schemes.insert(row.front());
  for (const char* scheme : {"one device", "data-parallel", "stages of a process", "ddp", "zero1",
                             "factor", "server", "local SGD", "ddp, tensor", "ddp, pipeline"}) {
    EXPECT_TRUE(schemes.contains(scheme)) << scheme;
  }
}

// The steps of a round differ: most have no average at their end.
TEST(PredictionFindings, CompareLocalSgdWithTheMeanStep) {
  Results results = made_up(experiment_of("local-sgd"), made_up_setting(), [](const Case&) {
    return MadeUpStep{.step_s = 0.1, .burst_every = 8, .burst_s = 0.9};
  });
  results.predictions.resize(results.cases.size());
  const auto error_of = [&](const char* key) {
    const auto found = std::ranges::find_if(
        results.cases, [&](const Measurement& each) { return each.what().key == key; });
    const auto place = static_cast<std::size_t>(found - results.cases.begin());
    results.predictions[place] = SimulatedStep{.step_s = 0.2};
    return prediction_error(results, place);
  };
  EXPECT_NEAR(error_of("every-8"), 0, 0.05);
  EXPECT_NEAR(error_of("ddp"), 1, 0.05);
}

// A hypervisor moves the cores: every second start ran while they were apart and took 0.1 s, the
// others 0.2.
TEST(PredictionFindings, CompareStartsWithTheCoresAsFarApartAsForTheCard) {
  const auto with_distance = [](double of_card_s) {
    Setting setting = made_up_setting();
    setting.units = 2;
    Results results = made_up(experiment_of("amdahl"), setting, [](const Case&) {
      return MadeUpStep{.step_s = 0.1, .phase_s = {{"backward", 0.1}}};
    });
    for (Measurement& each : results.cases) {
      std::vector<Start> starts = each.starts();
      for (std::size_t i = 0; i < starts.size(); ++i) {
        const bool is_apart = i % 2 == 1;
        starts[i].core_distance_s = is_apart ? 185e-9 : 40e-9;
        if (is_apart) continue;
        for (double& step_s : starts[i].ranks.front().step_s) step_s *= 2;
        for (double& phase_s : starts[i].ranks.front().phase_s["backward"]) phase_s *= 2;
      }
      each = Measurement(each.what(), starts);
    }
    results.card = two_cores();
    for (MachineLoad& load : results.card->loads) load.core_distance_s = of_card_s;
    SimulatedStep step{.step_s = 0.1};
    step.account[Part::kBackward] = 0.1;
    results.predictions.assign(results.cases.size(), step);
    return results;
  };
  const Results apart = with_distance(190e-9), near = with_distance(45e-9),
                other = with_distance(1e-6), unknown = with_distance(0);
  for (std::size_t i = 0; i < apart.cases.size(); ++i) {
    EXPECT_NEAR(prediction_error(apart, i), 0, 0.02);
    EXPECT_NEAR(compared_phase_s(apart, i, "backward"), 0.1, 0.01);
    EXPECT_NEAR(prediction_error(near, i), -0.5, 0.02);
    EXPECT_NEAR(compared_phase_s(near, i, "backward"), 0.2, 0.02);
    // With none like them, all count, of which the median is a slow one.
    EXPECT_NEAR(prediction_error(other, i), -0.5, 0.02);
    EXPECT_EQ(compared_step_s(unknown, i).median, unknown.cases[i].step_s().median);
  }
  const auto said = [](const Results& results) {
    return sentences_of(prediction_findings({&results}));
  };
  const std::size_t starts = apart.rounds(), cases = apart.cases.size();
  const std::string all = fmt::format("{} of {} starts are not compared: the hypervisor",
                                      cases * (starts - starts / 2), cases * starts);
  EXPECT_THAT(said(apart), HasSubstr(all));
  for (const Results* const each : {&other, &unknown}) {
    EXPECT_THAT(said(*each), testing::Not(HasSubstr("not compared")));
  }
}

TEST(MedianCard, CountsByArrangementAndLeavesOutWhatWasDisturbed) {
  const auto pass = [](double rate, double distance_s, double others_share) {
    MachineCard card = two_cores();
    card.others_share = others_share;
    for (MachineLoad& load : card.loads) {
      load.core_distance_s = distance_s;
      load.host_s = 1 / rate;
      for (OpRate& each : load.rates) each.rate = rate;
    }
    return card;
  };
  const auto rates_of = [](const MachineCard& card) {
    std::vector<double> rates;
    for (const MachineLoad& load : card.loads) rates.push_back(load.rates.back().rate);
    return rates;
  };
  const std::size_t loads = two_cores().loads.size();
  const MachineCard near =
      median_card({pass(5, 40e-9, 0), pass(1, 41e-9, 0), pass(2, 42e-9, 0.01)});
  EXPECT_EQ(rates_of(near), std::vector<double>(loads, 2));
  EXPECT_EQ(near.loads.front().host_s, 0.5);
  EXPECT_EQ(near.others_share, 0.01);

  const MachineCard both = median_card({pass(1, 40e-9, 0), pass(7, 180e-9, 0), pass(9, 190e-9, 0)});
  std::vector<double> expected;
  for (std::size_t i = 0; i < loads; ++i)
    expected.insert(expected.end(), {8, 1});  // that of most first
  EXPECT_EQ(rates_of(both), expected);
  EXPECT_EQ(both.loads.front().threads, 2) << "as they were measured";

  EXPECT_EQ(rates_of(median_card({pass(1, 0, 0.5), pass(2, 0, 0)})), std::vector<double>(loads, 2));
  EXPECT_EQ(rates_of(median_card({pass(1, 0, 0.5), pass(2, 0, 0.6)})),
            std::vector<double>(loads, 1))
      << "the least disturbed";
}

// A card that was measured in both arrangements predicts each start by the one that it ran in.
TEST(PredictionFindings, PredictStartsByTheArrangementOfTheCoresThatMostRanIn) {
  MachineCard card = two_cores();
  const auto add = [&](double distance_s, double rate) {
    for (MachineLoad load : two_cores().loads) {
      load.core_distance_s = distance_s;
      for (OpRate& each : load.rates) each.rate = rate;
      card.loads.push_back(std::move(load));
    }
  };
  card.loads.clear();
  add(40e-9, 1e9);
  add(190e-9, 2e9);
  const auto rate_of = [](const MachineCard& of) { return of.loads.front().rates.front().rate; };
  EXPECT_EQ(rate_of(in_arrangement(card, 45e-9)), 1e9);
  EXPECT_EQ(rate_of(in_arrangement(card, 180e-9)), 2e9);
  EXPECT_EQ(in_arrangement(card, 180e-9).loads.size(), two_cores().loads.size());
  EXPECT_EQ(in_arrangement(card, 0).loads.size(), card.loads.size()) << "unknown";
  EXPECT_EQ(in_arrangement(card, 1e-6).loads.size(), card.loads.size()) << "never measured";

  const Results results = made_up(experiment_of("amdahl"), made_up_setting(), [](const Case&) {
    return MadeUpStep{.step_s = 0.1, .phase_s = {{"backward", 0.1}}};
  });
  const auto started = [&](std::initializer_list<double> distances_s) {
    std::vector<Start> starts(distances_s.size(), results.cases.front().starts().front());
    std::ranges::transform(distances_s, starts, starts.begin(), [](double distance_s, Start start) {
      start.core_distance_s = distance_s;
      return start;
    });
    return Measurement(results.cases.front().what(), std::move(starts));
  };
  EXPECT_EQ(rate_of(card_of_starts(card, started({190e-9, 40e-9, 200e-9}))), 2e9);
  EXPECT_EQ(rate_of(card_of_starts(card, started({190e-9, 40e-9, 41e-9}))), 1e9);
  EXPECT_EQ(rate_of(card_of_starts(card, started({0, 0}))), 1e9) << "unknown: the first";
}

// Three cases run the same command line in two experiments: this is one prediction, compared with
// the median of the three measurements.
TEST(PredictionFindings, CountOneCommandLineOnce) {
  const Experiment& amdahl = experiment_of("amdahl");
  Setting setting = made_up_setting();
  setting.units = 2;
  const auto measured = [&](double step_s) {
    Results results = made_up(amdahl, setting, [&](const Case&) {
      return MadeUpStep{.step_s = step_s, .phase_s = {{"backward", step_s}}};
    });
    for (const double predicted_s : {0.1, 0.2, 9.0}) {  // 4 ranks are beyond the cores
      results.predictions.push_back(SimulatedStep{.step_s = predicted_s});
    }
    return results;
  };
  const Results one = measured(0.1), two = measured(0.125), three = measured(0.2);
  const auto alone = prediction_summary({&one});
  const auto all = prediction_summary({&one, &two, &three});
  EXPECT_EQ(alone.value().runs, 2);
  EXPECT_EQ(all.value().runs, 2);
  EXPECT_EQ(all.value().beyond_cores, 1);
  EXPECT_NEAR(alone.value().median_error, (0 + 1) / 2.0, 1e-2);
  // 0.1 and 0.2 compared with 0.125.
  EXPECT_NEAR(all.value().median_error, (0.2 + 0.6) / 2, 1e-2);
  const Findings findings = prediction_findings({&one, &two, &three});
  EXPECT_THAT(sentences_of(findings), HasSubstr("error over 2 distinct predictions within"));
  EXPECT_EQ(findings.tables.back().rows.size(), 9U) << "each case has a row";
}

TEST(CanPredict, IsFalseForPrecisionsWithoutARate) {
  MachineCard card = load_card("h200-nvlink");
  Workload workload = made_up_workload(64, 1);
  const auto can = [&](Precision precision) {
    workload.config.device.precision = precision;
    return why_no_prediction(workload, card).empty();
  };
  EXPECT_TRUE(can(Precision::kFp32));
  EXPECT_TRUE(can(Precision::kBf16));
  EXPECT_TRUE(can(Precision::kTf32));
  EXPECT_FALSE(can(Precision::kInt8));
  card.half_flops_per_s = card.tf32_flops_per_s = 0;
  EXPECT_TRUE(can(Precision::kFp32));
  EXPECT_FALSE(can(Precision::kBf16));
  EXPECT_FALSE(can(Precision::kTf32));
}

TEST(PredictionFindings, SkipCasesWithoutAPrediction) {
  Results results = made_up(experiment_of("amdahl"), made_up_setting(),
                            [&](const Case&) { return MadeUpStep{.step_s = 0.1}; });
  results.predictions.resize(results.cases.size());
  EXPECT_TRUE(prediction_findings({&results}).timed.empty());
  results.predictions.front() = SimulatedStep{.step_s = 0.105};
  const Findings findings = prediction_findings({&results});
  EXPECT_THAT(sentences_of(findings), HasSubstr("error over 1 distinct prediction within"));
  EXPECT_EQ(findings.tables.back().rows.size(), 1U);
}

TEST(PredictionFindings, SayWhenEveryPredictionIsNear) {
  Results results = made_up(experiment_of("amdahl"), made_up_setting(),
                            [&](const Case&) { return MadeUpStep{.step_s = 0.1}; });
  for (std::size_t i = 0; i < results.cases.size(); ++i) {
    results.predictions.push_back(SimulatedStep{.step_s = 0.105});
  }
  EXPECT_THAT(
      sentences_of(prediction_findings({&results})),
      HasSubstr("Each prediction within the cores is within a tenth of the measured time."));
}

TEST(Simulator, CountsAnOpByItsFlopsOrItsBytes) {
  MachineCard card = load_card("h200-nvlink");
  const Workload workload = made_up_workload(1024, 1);
  const WorkloadPrograms programs(workload);
  const auto& nodes = programs.step().nodes();
  const auto gemm =
      std::ranges::find_if(nodes, [](const Node& node) { return label_of(node.op) == "gemm"; });
  const auto adam =
      std::ranges::find_if(nodes, [](const Node& node) { return label_of(node.op) == "adam"; });
  card.launch_s = 0;
  card.memory_bytes_per_s = 1e30;
  card.multiprocessors = 0;
  const auto seconds = [&](const Node& node) { return node_s(programs.step(), node, card, {}); };
  const auto flops = static_cast<double>(cost_of(gemm->op).flops);
  EXPECT_NEAR(seconds(*gemm), flops / 52e12, 1e-12);
  // 64 x 1024 numbers make 64 tiles; sums over 1024 are split in two.
  card.multiprocessors = 132;
  card.load_macs = 0;
  EXPECT_NEAR(seconds(*gemm), flops / 52e12 * 132 / 128, 1e-12);
  card.memory_bytes_per_s = 1e9;
  // 28 bytes per parameter: four numbers read, three written.
  EXPECT_NEAR(seconds(*adam), 28.0 * (1024 * 1024 + 1024) / 1e9, 1e-6);
}

TEST(Simulator, SlowsKernelsBesideACollective) {
  const Workload workload = made_up_workload(1024, 2, SchemeKind::kDdp, 2);
  const WorkloadPrograms programs(workload);
  // The first bucket is reduced from 3 to 6. Meanwhile, one of the two remaining products takes 2
  // seconds, and half of the other is done; it ends at 6.5, and the second bucket 3 later.
  const SimulatedStep step = simulate(programs.step(), seconds_of_sums(3), {.kernel_slowdown = 2});
  EXPECT_DOUBLE_EQ(step.account[Part::kBackward], 1 + 2 + 1.5);
  EXPECT_DOUBLE_EQ(step.step_s, 9.5);
}

TEST(Products, FillAGpuByTheirShape) {
  MachineCard card{.multiprocessors = 132, .memory_bytes_per_s = 1e30};
  const auto share = [&](std::int64_t rows, std::int64_t cols, std::int64_t depth) {
    return product_share({rows, cols, depth}, 1e12, card);
  };
  EXPECT_NEAR(share(8192, 8192, 64), 4096.0 / 132 / (21 * 1.5), 1e-12)
      << "21 rounds of 43 x 64 tiles of 192 x 128; 32 rounds of smaller ones";
  card.multiprocessors = 1;
  EXPECT_NEAR(share(128, 128, 64), 1, 1e-12);
  EXPECT_NEAR(share(32, 32, 64), 1 / (1 + 16 * (2.0 / 32 - 2.0 / 128)), 1e-12) << "many loads";
  EXPECT_NEAR(share(8, 32, 64), share(32, 32, 64) / 4, 1e-12) << "the tile is mostly empty";
  card.multiprocessors = 4;
  EXPECT_NEAR(share(128, 128, 256), 1, 1e-12) << "sums in four pieces";
  card.memory_bytes_per_s = 2 * 4 * 128 * 128 * 4 / (2.0 * 128 * 128 * 256 / 1e12);
  EXPECT_NEAR(share(128, 128, 256), 0.8, 1e-12)
      << "adding them takes as long as the product: four tiles of 64 x 64, 1/4 slower";
  EXPECT_EQ(share(1, 32, 64), 1) << "of a vector, without tiles";
  EXPECT_EQ(share(32, 1, 64), 1);
  card.multiprocessors = 0;
  EXPECT_EQ(share(8, 32, 64), 1) << "unknown";
}

/// Eight heads of 64 columns, two sequences of 512: 4,194,304 scores in fp32, 268 Mflop a product.
TEST(AttentionOnAGpu, TakesWhatItsKernelsTake) {
  const Tensor rows{.rows = 1024, .cols = 512};
  const Tensor thirds{.rows = 1024, .cols = 3 * 512};
  const double scores = 2 * 8 * 512 * 512;
  const double product_flops = 2 * 64 * scores;
  const auto seconds_of = [&](AttentionForm form, double flops_per_s) -> std::pair<double, double> {
    const MachineCard card{
        .on_gpu = true, .flops_per_s = flops_per_s, .memory_bytes_per_s = 1e12, .launch_s = 1e-6};
    const AttentionShape shape{.heads = 8, .length = 512, .form = form};
    const Tensor kept{.rows = 1024, .cols = shape.kept_cols()};
    AttentionGrad grad{.grad_qkv = thirds,
                       .qkv = thirds,
                       .out = rows,
                       .grad_out = rows,
                       .kept = kept,
                       .shape = shape};
    if (form == AttentionForm::kStandard) grad.scratch = kept;
    return {device_op_s(Attention{.out = rows, .kept = kept, .qkv = thirds, .shape = shape}, card,
                        NodeSetting{}),
            device_op_s(grad, card, NodeSetting{})};
  };
  const double pass_s = 4 * scores / 1e12;
  constexpr double kSoftmax = 0.1;  // of a product, by its own flops
  // The products bound the time.
  const double product_s = product_flops / 1e12;
  const auto flash = seconds_of(AttentionForm::kFlash, 1e12);
  EXPECT_NEAR(flash.first, 2 * product_s, kSoftmax * product_s);
  EXPECT_NEAR(flash.second, 7 * product_s, 2 * kSoftmax * product_s);
  const auto standard = seconds_of(AttentionForm::kStandard, 1e12);
  EXPECT_NEAR(standard.first, 2 * product_s + 2 * pass_s + 3e-6, kSoftmax * product_s);
  EXPECT_NEAR(standard.second, 4 * product_s + 3 * pass_s + 5e-6, kSoftmax * product_s);
  // The scores do.
  const auto moved = seconds_of(AttentionForm::kStandard, 1e18);
  EXPECT_NEAR(moved.first, 4 * pass_s + 3e-6, 1e-9);
  EXPECT_NEAR(moved.second, 7 * pass_s + 5e-6, 1e-9);
  EXPECT_LT(seconds_of(AttentionForm::kFlash, 1e18).second, moved.second / 5);
}

/// A published product in fp32: c of rows x cols, summed over depth.
struct PublishedProduct {
  ProductSize size;
  double ms = 0;
};

/// The mean and the largest difference, as a share.
std::pair<double, double> difference_of(const MachineCard& card, double launch_s,
                                        std::span<const PublishedProduct> published) {
  double sum = 0, max = 0;
  for (const auto& [size, ms] : published) {
    const auto rows = static_cast<double>(size.rows), cols = static_cast<double>(size.cols),
               depth = static_cast<double>(size.depth);
    const double flops = 2 * rows * cols * depth;
    const double bytes = 4 * (rows * depth + depth * cols + rows * cols);
    const double ours_s =
        launch_s + std::max(flops / card.flops_per_s / product_share(size, card.flops_per_s, card),
                            bytes / card.memory_bytes_per_s);
    const double difference = std::abs(std::log(1e3 * ours_s / ms));
    sum += difference;
    max = std::max(max, difference);
  }
  return {sum / static_cast<double>(published.size()), max};
}

// From DeepBench's tables of a V100 and a T4, cuBLAS of CUDA 10.1, neither operand transposed. The
// cards' cost of a load is fitted to the V100's table; the T4's was not used.
TEST(Products, TakeAboutAsLongAsPublishedOnes) {
  const PublishedProduct v100[] = {
      {{1760, 16, 1760}, 0.038},   {{1760, 32, 1760}, 0.041},   {{1760, 64, 1760}, 0.056},
      {{1760, 128, 1760}, 0.088},  {{1760, 7000, 1760}, 3.376}, {{2048, 16, 2048}, 0.042},
      {{2048, 32, 2048}, 0.045},   {{2048, 64, 2048}, 0.063},   {{2048, 128, 2048}, 0.106},
      {{2048, 7000, 2048}, 4.387}, {{2560, 16, 2560}, 0.051},   {{2560, 32, 2560}, 0.054},
      {{2560, 64, 2560}, 0.075},   {{2560, 128, 2560}, 0.128},  {{2560, 7000, 2560}, 6.948},
      {{4096, 16, 4096}, 0.110},   {{4096, 32, 4096}, 0.110},   {{4096, 64, 4096}, 0.174},
      {{4096, 128, 4096}, 0.332},  {{3072, 16, 1024}, 0.032},   {{3072, 32, 1024}, 0.035},
      {{3072, 64, 1024}, 0.051},   {{3072, 128, 1024}, 0.081},  {{1024, 700, 512}, 0.067},
      {{35, 8457, 2048}, 0.209},   {{512, 24000, 2048}, 3.858}};
  const PublishedProduct t4[] = {
      {{1760, 16, 1760}, 0.130},  {{1760, 64, 1760}, 0.139},  {{1760, 128, 1760}, 0.210},
      {{2048, 16, 2048}, 0.094},  {{2048, 32, 2048}, 0.089},  {{2048, 64, 2048}, 0.129},
      {{2048, 128, 2048}, 0.252}, {{2560, 16, 2560}, 0.112},  {{2560, 32, 2560}, 0.117},
      {{2560, 64, 2560}, 0.207},  {{2560, 128, 2560}, 0.366}, {{4096, 16, 4096}, 0.301},
      {{4096, 32, 4096}, 0.345},  {{4096, 64, 4096}, 0.566},  {{4096, 128, 4096}, 1.059}};
  MachineCard card = load_card("v100-pcie");
  card.flops_per_s = 13.7e12;  // the table's large products, on an SXM2 board
  card.memory_bytes_per_s = 830e9;
  const auto [mean, max] = difference_of(card, 8e-6, v100);
  EXPECT_LT(mean, 0.1);
  EXPECT_LT(max, 0.4);
  const auto [t4_mean, t4_most] = difference_of(load_card("t4"), 8e-6, t4);
  EXPECT_LT(t4_mean, 0.2);
  EXPECT_LT(t4_most, 0.5);
}

// A row more never costs much more than its share, and a batch twice as large takes longer.
TEST(Products, GrowWithTheBatchWithoutCliffs) {
  for (const std::int64_t width : {1024, 8192}) {
    const auto seconds = [&](std::int64_t rows) {
      const ProductSize size{rows, width, width};
      return kH200.launch_s + 2.0 * static_cast<double>(rows * width * width) / kH200.flops_per_s /
                                  product_share(size, kH200.flops_per_s, kH200);
    };
    for (std::int64_t rows = 128; rows <= 1024; rows += 16) {
      EXPECT_LT(seconds(rows + 16), 1.35 * seconds(rows)) << rows << " rows of " << width;
    }
    for (const std::int64_t rows : {128, 256, 512}) {
      EXPECT_GT(seconds(2 * rows), 1.5 * seconds(rows)) << rows << " rows of " << width;
    }
  }
  const auto forward_s = [&](std::int64_t batch) {
    return predicted_step(asked(fmt::format("--dim 1024 --batch-size {}", batch)), kH200, 1)
        .account[Part::kForward];
  };
  EXPECT_GT(forward_s(512), 1.4 * forward_s(256));
  EXPECT_GT(forward_s(1024), 1.5 * forward_s(512));
}

Workload on_gpus(SchemeKind scheme, int ranks) {
  Workload workload = made_up_workload(8192, 6, scheme, ranks);
  workload.on_gpu = true;
  workload.gpus = ranks;
  return workload;
}

// LinearAdam sums in fp32 on all devices.
TEST(Products, AreFasterInTf32UnlessTheyUpdateToo) {
  MachineCard h200 = load_card("h200-nvlink");
  h200.memory_bytes_per_s = 1e18;
  Workload workload = on_gpus(SchemeKind::kSingle, 1);
  const auto time_of = [&](Precision precision, Update update) {
    workload.config.device.precision = precision;
    workload.config.training.update = update;
    return predicted_run(workload, h200).step_s;
  };
  EXPECT_LT(time_of(Precision::kTf32, Update::kSeparate),
            0.3 * time_of(Precision::kFp32, Update::kSeparate));
  EXPECT_GT(time_of(Precision::kTf32, Update::kFused),
            0.3 * time_of(Precision::kFp32, Update::kFused));
}

TEST(SlowRanks, HoldUpAllAndShowOnRank0AsCommunication) {
  Workload workload = on_gpus(SchemeKind::kDdp, 4);
  const SimulatedStep even = predicted_run(workload, kH200);
  workload.config.injected.slow_rank = SlowRank{.rank = 0, .delay_ms = 10};
  const SimulatedStep own = predicted_run(workload, kH200);
  EXPECT_NEAR(own.account[Part::kInjected], 0.010, 1e-4);
  EXPECT_NEAR(own.step_s, even.step_s + 0.010, 1e-4);
  workload.config.injected.slow_rank->rank = 3;
  const SimulatedStep other = predicted_run(workload, kH200);
  EXPECT_NEAR(other.account[Part::kInjected], 0, 1e-4);
  EXPECT_NEAR(other.step_s, own.step_s, 1e-6);
  EXPECT_NEAR(other.account[Part::kExposedCommunication],
              own.account[Part::kExposedCommunication] + 0.010, 1e-4);
}

/// What a rank's steps after the warm-up of five draw, by the minimal standard generator.
std::vector<double> drawn_s(int rank, double max_s, int steps = 20) {
  std::int64_t state = rank + 1;
  std::vector<double> all;
  for (int step = 0; step < steps; ++step) {
    state = state * 48271 % 2147483647;
    if (step >= 5) all.push_back(max_s * static_cast<double>(state - 1) / 2147483646.0);
  }
  return all;
}

TEST(Jitter, HoldsUpRanksForTheLongestPauseOfEachStep) {
  Workload workload = on_gpus(SchemeKind::kDdp, 4);
  const SimulatedStep even = predicted_run(workload, kH200);
  workload.config.injected.jitter_ms = 10;
  const SimulatedStep jitters = predicted_run(workload, kH200);
  double own_s = 0, longest_s = 0;
  for (std::size_t step = 0; step < 15; ++step) {
    double max_s = 0;
    for (int rank = 0; rank < 4; ++rank) max_s = std::max(max_s, drawn_s(rank, 0.010).at(step));
    own_s += drawn_s(0, 0.010).at(step) / 15;
    longest_s += max_s / 15;
  }
  EXPECT_GT(longest_s, 1.2 * own_s);
  EXPECT_NEAR(jitters.step_s, even.step_s + longest_s, 1e-4);
  EXPECT_NEAR(jitters.account[Part::kInjected], own_s, 1e-6);
  EXPECT_NEAR(jitters.account[Part::kExposedCommunication],
              even.account[Part::kExposedCommunication] + longest_s - own_s, 1e-4);
  // A pause that all ranks are told to make too.
  workload.config.injected.delay_ms = 5;
  EXPECT_NEAR(predicted_run(workload, kH200).step_s, jitters.step_s + 0.005, 1e-6);
}

TEST(Jitter, OfLocalSgdCountsByRounds) {
  MachineCard card = two_cores();
  Workload workload = made_up_workload(1024, 2, SchemeKind::kDdp, 2);
  workload.config.device.threads = 1;
  workload.config.parallel.sync_every = 5;
  const double even_s = predicted_run(workload, card).step_s;
  workload.config.injected.jitter_ms = 10;
  const std::vector<double> a = drawn_s(0, 0.010), b = drawn_s(1, 0.010);
  double longest_s = 0;
  for (auto round = a.begin(); round != a.end(); round += 5) {
    const auto other = b.begin() + (round - a.begin());
    longest_s +=
        std::max(std::accumulate(round, round + 5, 0.0), std::accumulate(other, other + 5, 0.0));
  }
  EXPECT_NEAR(predicted_run(workload, card).step_s, even_s + longest_s / 15, 1e-6);
}

// The trainer draws once for each of its steps.
TEST(Jitter, HasTheBitsOfTheMinimalGenerator) {
  Jitter jitter(0.010, 2);
  for (int step = 0; step < 5; ++step) jitter.next_s();
  for (const double seconds : drawn_s(2, 0.010)) EXPECT_NEAR(jitter.next_s(), seconds, 1e-8);
}

TEST(MeasuredMachines, TakeTheUpdateThatTheTrainersTrialFindsFaster) {
  MachineCard card = two_cores();
  for (MachineLoad& load : card.loads) load.rates.push_back({"linear_adam", 64, 256, 1e9});
  Workload workload = made_up_workload(1024, 3);
  const auto step_s = [&](Update update) {
    workload.config.training.update = update;
    return predicted_run(workload, card).step_s;
  };
  EXPECT_EQ(step_s(Update::kAuto), step_s(Update::kSeparate));
  EXPECT_LT(step_s(Update::kAuto), step_s(Update::kFused));
  for (MachineLoad& load : card.loads) load.rates.back().rate = 1e15;
  EXPECT_EQ(step_s(Update::kAuto), step_s(Update::kFused));
  EXPECT_LT(step_s(Update::kAuto), step_s(Update::kSeparate));
  // Without a warm-up there is no trial, and its rule takes the fused one.
  for (MachineLoad& load : card.loads) load.rates.back().rate = 1e9;
  workload.config.training.warmup = 0;
  EXPECT_EQ(step_s(Update::kAuto), step_s(Update::kFused));
}

TEST(DataParallelOnGpus, MovesRowsOverTheLink) {
  const Workload workload = on_gpus(SchemeKind::kDataParallel, 2);
  const WorkloadPrograms programs(workload);
  int copies = 0;
  for (const Node& node : programs.step().nodes()) {
    if (node.lane != Lane::kComm || label_of(node.op) != "copy") continue;
    ++copies;
    EXPECT_DOUBLE_EQ(node_s(programs.step(), node, kH200, {.mesh = Mesh::of_data(0, 2)}),
                     3e-6 + 32.0 * 8192 * 4 / 376e9);
  }
  EXPECT_EQ(copies, 3) << "samples out, outputs in, their gradient out";
}

// Device 0 sends rows to seven others; each row takes its share of device 0's link.
TEST(DataParallelOnGpus, ShareTheLinkTheyCopyFrom) {
  const Workload workload = on_gpus(SchemeKind::kDataParallel, 8);
  const WorkloadPrograms programs(workload);
  const SimulatedStep step = predicted_run(workload, kH200);
  double first = 0, last = 0;
  for (std::size_t i = 0; i < step.spans.size(); ++i) {
    const Node& node = programs.step().nodes()[i];
    if (node.lane != Lane::kComm || label_of(node.op) != "copy" || node.device == 0) continue;
    if (first > 0) break;  // the gradients of outputs
    if (node.device == 7) first = last = step.spans[i].end_s - step.spans[i].begin_s;
  }
  EXPECT_GE(last, 7 * 8.0 * 8192 * 4 / 376e9);
}

/// A link's bytes per second in one direction, by data sheets. Network: of one node's GPUs.
struct LinkPeaks {
  double node = 0;
  double network_of_node = 0;
};
const std::map<std::string, LinkPeaks> kLinkPeaks = {
    {"a100-nvlink", {.node = 300e9}},
    {"h100-infiniband", {.node = 450e9, .network_of_node = 8 * 50e9}},
    {"h100-nvlink", {.node = 450e9}},
    {"h200-nvlink", {.node = 450e9}},
    {"t4", {}},
    {"v100-pcie", {.node = 15.75e9}}};

/// Bytes that cross the busiest link in one direction, at least, by every algorithm that NCCL has
/// for the card.
double min_on_link(const std::string& card, ExchangeKind exchange, double bytes, int ranks) {
  const double n = ranks;
  const bool adds_in_switches = card.starts_with('h') && ranks > 4;
  const std::map<ExchangeKind, double> factors = {
      {ExchangeKind::kAllReduce, adds_in_switches ? (n + 1) / n : 2 * (n - 1) / n},
      {ExchangeKind::kReduceScatter, (n - 1) / n},
      {ExchangeKind::kAllGather, (n - 1) / n},
      {ExchangeKind::kBroadcast, 1},
      {ExchangeKind::kReduce, 1},
      {ExchangeKind::kSendReceive, 1}};
  return bytes * factors.at(exchange);
}

/// Whether a message of this time stays within its links.
void expect_within_links(const std::string& name, ExchangeKind exchange, double bytes, int ranks,
                         double seconds) {
  const LinkPeaks peaks = kLinkPeaks.at(name);
  const int nodes = (ranks + 7) / 8;
  if (nodes == 1) {
    EXPECT_LE(min_on_link(name, exchange, bytes, ranks) / seconds, peaks.node)
        << name_of(exchange) << " of " << bytes << " bytes on " << ranks;
    return;
  }
  // Out of a node go all bytes that the others lack; sums go there and back.
  const double others = (nodes - 1.0) / nodes;
  const double leaving =
      exchange == ExchangeKind::kAllReduce ? 2 * others
      : exchange == ExchangeKind::kAllGather || exchange == ExchangeKind::kReduceScatter ? others
                                                                                         : 1;
  EXPECT_LE(bytes * leaving / seconds, peaks.network_of_node)
      << name_of(exchange) << " of " << bytes << " bytes on " << ranks;
}

TEST(Links, CarryNoMessageFasterThanTheyCan) {
  for (const std::string& name : card_names()) {
    SCOPED_TRACE(name);
    const MachineCard card = load_card(name);
    for (int ranks = 2; ranks <= std::min(card.max_ranks(), 4096);
         ranks += ranks < 40 ? 1 : ranks / 2) {
      for (std::size_t i = 0; i < kCountOf<ExchangeKind>; ++i) {
        for (double bytes = 4; bytes < 1e13; bytes *= 2) {
          const auto exchange = static_cast<ExchangeKind>(i);
          expect_within_links(name, exchange, bytes, ranks,
                              exchange_s(card, exchange, bytes, ranks));
        }
      }
      EXPECT_LE(1e12 / copy_s(card, 1e12), kLinkPeaks.at(name).node);
    }
  }
}

/// What crosses links in a step of any scheme.
TEST(Links, CarryNoStepFasterThanTheyCan) {
  for (const std::string& name : card_names()) {
    const MachineCard card = load_card(name);
    for (const std::string_view scheme : scheme_names()) {
      for (const int ranks : {2, 4, 8, 16, 64}) {
        const bool is_in_process = scheme == "data-parallel";
        if (ranks > (is_in_process ? card.node_ranks : card.max_ranks())) continue;
        SCOPED_TRACE(fmt::format("{}, {}", name, scheme));
        for (const std::int64_t dim : {64, 1024, 8192, 32768}) {
          barestep::Run run =
              run_on(asked(fmt::format("--dim {} --scheme {}", dim, scheme)), card, ranks);
          run.config.parallel.tensor = run.config.parallel.pipeline = 1;
          const WorkloadPrograms programs(run);
          for (const Node& node : programs.step().nodes()) {
            const auto* collective = std::get_if<Collective>(&node.op);
            if (collective == nullptr) continue;
            expect_within_links(name, exchange_kind_of(*collective),
                                static_cast<double>(cost_of(node.op).message_bytes), ranks,
                                node_s(programs.step(), node, card, {.mesh = programs.mesh()}));
          }
        }
      }
    }
  }
}

// The parameters go to the second GPU and the gradients come back, 1.61 GB each way at 363 GB/s.
TEST(Predictions, MoveEveryByteOfDataParallelOverTheLink) {
  const barestep::Run model = asked("--scheme data-parallel");
  const SimulatedStep two = predicted_step(model, kH200, 2);
  EXPECT_NEAR(two.account[Part::kExposedCommunication], 2 * 4 * 402'702'336.0 / 363e9, 1e-4);
  // 2.63 ms of Adam, 1.13 and 0.70 ms of backward and forward with 32 rows.
  EXPECT_NEAR(two.step_s, (8.87 + 2.63 + 1.13 + 0.70) * 1e-3, 0.2e-3);
  EXPECT_NEAR(predicted_step(model, kH200, 1).step_s / two.step_s, 0.43, 0.01);
}

TEST(Predictions, AgreeWithCalculationsByHand) {
  // 402,702,336 parameters at 4.3 TB/s: Adam moves 28 bytes per parameter.
  const SimulatedStep one = predicted_step({}, kH200, 1);
  EXPECT_NEAR(one.account[Part::kOptimizer], 28 * 402'702'336.0 / 4.3e12, 1e-5);
  // 51.5 GFLOP at 52 TFLOP/s, on 128 of 132 multiprocessors: 64 x 8192 numbers are 32 tiles of 64 x
  // 256, which load 1/16 more than tiles of 128 x 128, each with its sums in four pieces. Adding
  // these moves 16.8 MB. Each of six products is launched.
  EXPECT_NEAR(one.account[Part::kForward],
              51.54e9 / 52e12 * 132 / 128 * (1 + 1.0 / 16) + 6 * (16.8e6 / 4.3e12 + 3e-6), 1e-5);
  EXPECT_EQ(one.account[Part::kExposedCommunication], 0);
}

TEST(FastestSentence, TurnsRoundWithTheRatesAndNamesTies) {
  EXPECT_EQ(fastest_text(100, {{1, 100}}, "rank"),
            "Simulated: one rank would train 100 samples/s.");
  EXPECT_EQ(fastest_text(100, {{1, 100}, {2, 180}, {4, 310}}, "rank"),
            "Simulated: 4 ranks would train fastest, 310 samples/s, 3.1x as many as one rank.");
  EXPECT_EQ(fastest_text(100, {{1, 100}, {2, 179}, {4, 180}}, "device"),
            "Simulated: 2 and 4 devices would train fastest and tie within 1 %, 180 samples/s, "
            "1.8x as many as one device.");
  EXPECT_EQ(fastest_text(100, {{1, 100}, {2, 80}, {4, 70}}, "rank"),
            "Simulated: more ranks do not help here: of the speed of one, 2 reach 80 % and 4 reach "
            "70 %.");
  EXPECT_EQ(
      fastest_text(100, {{1, 100}, {2, 70}, {4, 100.9}}, "device"),
      "Simulated: more devices do not help here: of the speed of one, 2 reach 70 % and 4 reach "
      "all of it within 1 %.");
  EXPECT_EQ(fastest_text(100, {{2, 80}}, "rank"),
            "Simulated: more ranks do not help here: of the speed of one, 2 reach 80 %.");
  EXPECT_EQ(fastest_text(0, {{2, 80}, {4, 70}}, "rank"),
            "Simulated: 2 ranks would train fastest, 80 samples/s.")
      << "one has too little memory";
}

MachineCard with_fast_links() {
  MachineCard fast = load_card("h200-nvlink");
  for (ExchangeTable& table : fast.node.tables[ExchangeKind::kAllReduce]) {
    for (auto& point : table.seconds_by_bytes) point.second = 1e-9;
  }
  fast.node.latency_s = fast.node.hop_s = 0;
  fast.node.kernel_slowdown = 1;
  return fast;
}

TEST(Predictions, TurnRoundWithTheMachine) {
  const MachineCard fast = with_fast_links();
  EXPECT_THAT(predict_scaling({}, kH200, {1, 2, 4}).timed.front().text,
              HasSubstr("Simulated: more ranks do not help here: of the speed of one, 2 reach "));
  EXPECT_THAT(predict_scaling({}, kH200, {1, 2, 4}).timed.at(1).text,
              MatchesRegex("Simulated: with 4 ranks, exposed communication takes [0-9]+ % of the "
                           "step\\."));
  EXPECT_THAT(predict_scaling({}, fast, {1, 2, 4}).timed.front().text,
              HasSubstr("Simulated: 4 ranks would train fastest"));
  EXPECT_THAT(
      predict_scaling({}, kH200, {1}).timed.back().text,
      MatchesRegex("Simulated: at width 8192 two ranks are faster than one, by more than 1 "
                   "%, from a batch of [0-9]+; at a batch of 64 at no width up to 131072\\."));
  EXPECT_THAT(predict_scaling({}, fast, {1}).timed.back().text,
              MatchesRegex(".*; at a batch of 64 from a width of [0-9]+\\."));
  EXPECT_THAT(predict_scaling(asked("--batch-size 1"), fast, {1}).timed.back().text,
              HasSubstr("; a batch of 1 cannot be divided."));
  EXPECT_THAT(predict_scaling({}, load_card("t4"), {1}).timed.back().text,
              HasSubstr("The machine has one device, so two ranks cannot pay off."));
  // With such slow links, two ranks pay off at no batch.
  MachineCard slow = kH200;
  slow.node.latency_s = 100;
  EXPECT_THAT(predict_scaling({}, slow, {1}).timed.back().text,
              HasSubstr("by more than 1 %, at no batch up to 1048576; at a batch of 64 at no"));
}

TEST(Predictions, SayWhatDoesNotFitInTheMemoryOfADevice) {
  MachineCard card = load_card("h200-nvlink");
  const barestep::Run model = asked("--scheme zero3");
  // Parameters, gradients and moments of six layers take 6 GiB on one rank, a part of that on four.
  card.device_bytes = std::int64_t{4} << 30;
  const Findings findings = predict_scaling(model, card, {1, 4});
  EXPECT_THAT(findings.timed.front().text,
              MatchesRegex("Does not fit: one rank needs 6\\.[0-9]+ GiB, and a device has 4\\.00 "
                           "GiB\\. Its times are those of enough memory\\."));
  EXPECT_THAT(findings.timed.at(1).text, MatchesRegex("Simulated: 4 ranks would train fastest, "
                                                      "[0-9,]+ samples/s\\."));
  const FindingTable& table = findings.tables.front();
  EXPECT_EQ(table.columns.back(), "memory of a rank");
  EXPECT_THAT(table.rows.at(0).back(), HasSubstr(" GiB, too much"));
  EXPECT_EQ(table.rows.at(1).at(table.columns.size() - 3), "-") << "no speed-up";
  EXPECT_THAT(table.rows.at(1).back(), Not(HasSubstr("too much")));
  // Cores share the machine's memory.
  MachineCard cores = two_cores();
  const barestep::Run two = run_on({}, cores, 2);
  cores.device_bytes = 2 * max_device_bytes(two);
  EXPECT_EQ(why_too_large(two, cores), "");
  cores.device_bytes -= 1;
  EXPECT_THAT(why_too_large(two, cores), StartsWith("2 ranks need "));
  card.device_bytes = 0;
  EXPECT_EQ(why_too_large(model, card), "") << "the card does not say";
}

TEST(Predictions, OfSixteenBitsNeedTheirRate) {
  const MachineCard t4 = load_card("t4");
  const auto step_s = [&](const char* precision) {
    return predicted_step(asked(fmt::format("--precision {}", precision)), t4, 1).step_s;
  };
  EXPECT_LT(step_s("fp16"), 0.9 * step_s("fp32"));
  Workload bf16{run_on(asked("--precision bf16"), t4, 1)};
  EXPECT_EQ(why_no_prediction(bf16, t4), "the card of one T4 has no rate of products in bf16");
  EXPECT_FALSE(can_run(bf16, t4, 1));
}

TEST(SimulatedFigures, HaveTwoDigits) {
  EXPECT_EQ(simulated_time(8.296e-3), "8.3 ms");
  EXPECT_EQ(simulated_time(8.04e-3), "8.0 ms");
  EXPECT_EQ(simulated_time(83.6e-3), "84 ms");
  EXPECT_EQ(simulated_time(0.8349), "830 ms");
  EXPECT_EQ(simulated_time(9.97e-3), "10 ms");
  EXPECT_EQ(simulated_time(0), time_text(0.0));
  EXPECT_EQ(simulated_number(0.0521), "0.052");
  EXPECT_EQ(simulated_number(12345), "12,000");
  EXPECT_EQ(simulated_percent(0.4781), "48 %");
  EXPECT_EQ(simulated_percent(0.0482), "4.8 %");
  EXPECT_EQ(simulated_factor(1.694), "1.7x");
  EXPECT_EQ(simulated_factor(0.431), "0.43x");
}

// A tie: two ranks lose to communication and other costs exactly what they save.
TEST(Predictions, CallATieNoGain) {
  MachineCard card = with_fast_links();
  const barestep::Run model;
  const double one = predicted_step(model, card, 1).step_s;
  // The loss is reduced too, but backward hides it.
  card.node.latency_s = one - predicted_step(model, card, 2).step_s;
  double low = 0, high = card.node.latency_s;
  for (int i = 0; i < 60; ++i) {
    card.node.latency_s = (low + high) / 2;
    (predicted_step(model, card, 2).step_s < one ? low : high) = card.node.latency_s;
  }
  card.node.latency_s = low - 0.0005 * one;  // per exchange: slightly faster than one rank
  const std::string sentence = predict_scaling(model, card, {1, 2}).timed.front().text;
  EXPECT_THAT(sentence, HasSubstr("more ranks do not help here"));
  EXPECT_THAT(sentence, HasSubstr(" 2 reach all of it within 1 %."));
}

TEST(Predictions, CoverEverySchemeByTheNameThatUsersGive) {
  EXPECT_THAT(scheme_names(), ElementsAre("ddp", "zero1", "zero2", "zero3", "factor", "server",
                                          "data-parallel", "tensor", "pipeline"));
  std::set<double> steps;
  for (const std::string_view scheme : scheme_names()) {
    const barestep::Run model = asked(fmt::format("--scheme {}", scheme));
    const Findings findings = predict_scaling(model, kH200, {1, 4});
    EXPECT_THAT(findings.tables.front().title,
                HasSubstr(fmt::format("Simulated: {}, 8192 x 6, batch 64", scheme)));
    EXPECT_EQ(findings.tables.front().columns.front(),
              scheme == "data-parallel" ? "devices" : "ranks");
    steps.insert(predicted_step(model, kH200, 4).step_s);
  }
  EXPECT_EQ(steps.size(), scheme_names().size());
  // Parameters to the devices, gradients back, all through device 0, none of it hidden.
  EXPECT_GT(predicted_step(asked("--scheme data-parallel"), kH200, 4).step_s,
            predicted_step({}, kH200, 4).step_s);
}

TEST(Predictions, TakeAnyMesh) {
  barestep::Run model = asked("--tensor 2 --pipeline 2 --micro-batches 4");
  const Findings findings = predict_scaling(model, kH200, {1, 4, 8});
  EXPECT_EQ(findings.tables[0].title,
            "Simulated: ddp, 8192 x 6, batch 64, --pipeline 2 --micro-batches 4 --tensor 2, on 8 x "
            "H200, NVLink");
  EXPECT_THAT(findings.timed.back().text, HasSubstr("at width 8192 4 ranks are faster than one"));
  const FindingTable& stages = findings.tables[1];
  ASSERT_EQ(stages.rows.size(), 6U) << "two stages and the bubble, of 4 ranks and of 8";
  EXPECT_EQ(stages.rows[2].at(1), "equal stages (calculated)");
  EXPECT_EQ(stages.rows[2].back(), "20.0 %");
  std::set<std::string> exchanges;
  for (const auto& row : findings.tables[2].rows) exchanges.insert(row[0] + " " + row[1]);
  EXPECT_THAT(exchanges, testing::IsSupersetOf({"4 send_receive of two stages",
                                                "4 all_reduce of 2 tensor ranks",
                                                "8 all_reduce of 2 data ranks"}));
  // Two copies halve the batch of each, which pays if it is large.
  EXPECT_GT(predicted_step(model, kH200, 8).step_s, predicted_step(model, kH200, 4).step_s);
  model.config.data.batch_size = 8192;
  EXPECT_LT(predicted_step(model, kH200, 8).step_s, predicted_step(model, kH200, 4).step_s);
  // A slow rank of stage 1 holds up stage 0, too.
  const SimulatedStep even = predicted_step(model, kH200, 4);
  model.config.injected.slow_rank = SlowRank{.rank = 3, .delay_ms = 50};
  const SimulatedStep late = predicted_step(model, kH200, 4);
  EXPECT_GE(late.step_s, even.step_s + 0.049);
  EXPECT_EQ(late.account[Part::kInjected], 0);
  EXPECT_NEAR(late.stages[1][Part::kInjected], 0.050, 1e-3);
}

TEST(Predictions, SayWhenRanksPayWhereSomeSizesCannotBeCounted) {
  // A batch of 1048576 has more flops than 64 bits count.
  EXPECT_THAT(
      predict_scaling(asked("--dim 300000 --batch-size 8192"), kH200, {1, 2}).timed.back().text,
      MatchesRegex("Simulated: at width 300000 two ranks are faster than one, by more than "
                   "1 %, from a batch of [0-9]+; at a batch of 8192 from a width of "
                   "[0-9]+\\."));
}

TEST(Predictions, SayWhenRanksPayWhereSomeWidthsCannotBeShared) {
  // A block of width 128 has two heads, too few for three ranks.
  const barestep::Run model = asked("--dim 384 --tensor 3 --block transformer --heads 3");
  EXPECT_THAT(predict_scaling(model, kH200, {3}).timed.back().text,
              HasSubstr("at a batch of 64 from a width of 256."));
}

TEST(Predictions, GiveAllRanksToTheAxisOfAScheme) {
  const auto step_s = [&](const std::string& options, int ranks) {
    return predicted_step(asked(options), kH200, ranks).step_s;
  };
  EXPECT_EQ(step_s("--scheme tensor", 4), step_s("--tensor 4", 4));
  EXPECT_EQ(step_s("--scheme pipeline", 4), step_s("--pipeline 4", 4));
  EXPECT_EQ(step_s("--tensor 2 --scheme pipeline", 8), step_s("--tensor 2 --pipeline 4", 8));
}

TEST(Predictions, AreOfTheUsualNumbersOfRanksThatCanRunTheModel) {
  EXPECT_THAT(usual_ranks({}, kH200), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(usual_ranks({}, load_card("t4")), ElementsAre(1));
  EXPECT_THAT(usual_ranks({}, load_card("v100-pcie")), ElementsAre(1, 2));
  EXPECT_THAT(usual_ranks(asked("--batch-size 4"), kH200), ElementsAre(1, 2, 4));
  EXPECT_THAT(usual_ranks(asked("--batch-size 4 --batch-per-rank"), kH200),
              ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(usual_ranks(asked("--tensor 3"), kH200), ElementsAre(1, 3, 6));
  EXPECT_THAT(usual_ranks(asked("--depth 4 --scheme pipeline"), kH200), ElementsAre(1, 2, 4));
  EXPECT_THAT(usual_ranks(asked("--slow-rank 3:5"), kH200), ElementsAre(1, 4, 8));
  const barestep::Run two_heads = asked("--dim 256 --scheme tensor --block transformer --heads 2");
  EXPECT_THAT(usual_ranks(two_heads, kH200), ElementsAre(1, 2));
  const barestep::Run servers = asked("--scheme server --servers 4");
  EXPECT_THAT(usual_ranks(servers, kH200), ElementsAre(1, 4, 8));
  // None of them is refused.
  for (const char* const options :
       {"--tensor 3", "--pipeline 4", "--batch-size 1", "--depth 4 --scheme pipeline",
        "--batch-size 6 --pipeline 2 --micro-batches 3"}) {
    const barestep::Run model = asked(options);
    EXPECT_FALSE(predict_scaling(model, kH200, usual_ranks(model, kH200)).tables.empty());
  }
}

TEST(Predictions, RefuseOptionsThatExcludeEachOtherForOneRankToo) {
  for (const char* const options :
       {"--scheme factor --pipeline 3", "--recompute 2 --pipeline 2", "--micro-batches 4",
        "--scheme data-parallel --tensor 2", "--scheme factor --block transformer"}) {
    SCOPED_TRACE(options);
    EXPECT_THROW(predict_scaling(asked(options), kH200, {1}), Error);
  }
}

TEST(Predictions, TakePausesAndPrecision) {
  const double plain = predicted_step({}, kH200, 2).step_s;
  EXPECT_NEAR(predicted_step(asked("--delay-ms 20"), kH200, 2).step_s, plain + 0.020, 1e-4);
  EXPECT_NEAR(predicted_step(asked("--slow-rank 1:20"), kH200, 2).step_s, plain + 0.020, 1e-4);
  EXPECT_EQ(predicted_step(asked("--slow-rank 1:20"), kH200, 1).step_s,
            predicted_step({}, kH200, 1).step_s)
      << "a rank alone has no slow one";
  EXPECT_LT(predicted_step(asked("--precision tf32"), kH200, 1).step_s,
            0.8 * predicted_step({}, kH200, 1).step_s);
  const barestep::Run model = asked("--precision tf32 --delay-ms 5 --slow-rank 2:20");
  const Findings findings = predict_scaling(model, kH200, {1, 4});
  EXPECT_EQ(
      findings.tables.front().title,
      "Simulated: ddp, 8192 x 6, batch 64, --precision tf32 --delay-ms 5 --slow-rank 2:20, on "
      "8 x H200, NVLink");
  EXPECT_THAT(findings.timed.back().text, Not(HasSubstr("at width"))) << "two ranks have no rank 2";
  const FindingTable& table = findings.tables.front();
  EXPECT_EQ(table.columns.at(2), "injected");
  EXPECT_EQ(table.rows.at(0).at(2), "5.0 ms");
  for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.columns.size());
}

TEST(Predictions, TakeRecomputation) {
  const barestep::Run model = asked("--depth 12 --batch-size 4096 --recompute 3");
  const SimulatedStep plain = predicted_step(asked("--depth 12 --batch-size 4096"), kH200, 1);
  const SimulatedStep step = predicted_step(model, kH200, 1);
  EXPECT_EQ(plain.account[Part::kRecompute], 0);
  // 2 segments of 4 layers, except the last layer of each: 6 of 12 layers.
  EXPECT_NEAR(step.account[Part::kRecompute] / plain.account[Part::kForward], 0.5, 0.01);
  EXPECT_NEAR(step.step_s, plain.step_s + step.account[Part::kRecompute], 1e-3 * step.step_s);
  const FindingTable table = predict_scaling(model, kH200, {1, 2}).tables.front();
  EXPECT_THAT(table.title, HasSubstr("batch 4096, --recompute 3, on"));
  EXPECT_THAT(table.columns, Contains("recompute"));
  for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.columns.size());
}

Run predicted_blocks(AttentionForm form, std::int64_t length) {
  return asked(
      fmt::format("--dim 1024 --depth 4 --batch-size 16 --block transformer --heads 16 --length {} "
                  "--attention {}",
                  length, name_of(form)));
}

TEST(Predictions, PriceBothFormsOfAttention) {
  const auto step_s = [&](AttentionForm form, std::int64_t length) {
    return predicted_step(predicted_blocks(form, length), kH200, 1).step_s;
  };
  // Products dominate in fp32: the flash form has two of attention's 14 more. And both have more
  // than twice the attention for twice the length.
  for (const AttentionForm form : kValuesOf<AttentionForm>) {
    EXPECT_GT(step_s(form, 4096), 2.2 * step_s(form, 2048)) << name_of(form);
  }
  EXPECT_NE(step_s(AttentionForm::kFlash, 2048), step_s(AttentionForm::kStandard, 2048));
  const Findings findings =
      predict_scaling(predicted_blocks(AttentionForm::kStandard, 2048), kH200, {1, 2});
  EXPECT_THAT(
      findings.tables.front().title,
      HasSubstr("1024 x 4, batch 16, --block transformer --heads 16 --length 2048 --attention "
                "standard,"));
  EXPECT_THAT(findings.timed.at(1).text, HasSubstr("at width 1024 "));
  // The largest batch keeps the rows of a step; a head of every width is at most as wide as usual.
  EXPECT_THAT(findings.timed.at(1).text, ContainsRegex("at a batch of 16 from a width of"));
}

TEST(Predictions, PriceAttentionThatWasNotMeasuredAsProducts) {
  MachineCard cpu = two_cores();
  const SimulatedStep here = predicted_step(predicted_blocks(AttentionForm::kFlash, 512), cpu, 1);
  for (MachineLoad& load : cpu.loads) {
    for (OpRate& each : load.rates) {
      if (each.op.starts_with("gemm")) each.rate *= 2;
    }
  }
  EXPECT_LT(predicted_step(predicted_blocks(AttentionForm::kFlash, 512), cpu, 1).step_s,
            0.7 * here.step_s);
}

TEST(Predictions, ShowWhatCommunicationReachesAndCosts) {
  const Findings findings = predict_scaling({}, kH200, {1, 4, 8});
  const FindingTable& table = findings.tables.at(1);
  EXPECT_EQ(table.title, "Simulated: communication by number of ranks");
  ASSERT_EQ(table.rows.size(), 2U) << "one rank exchanges nothing";
  EXPECT_THAT(table.rows[0],
              ElementsAre("4", "all_reduce", "363 GB/s with 8.00 GiB", HasSubstr("with 256.03 MiB"),
                          HasSubstr(" GB/s, 75."), "1.22x as long"));
  EXPECT_EQ(table.rows[1].at(2), "473 GB/s with 8.00 GiB");
  // In the switches of NVLink, 9/8 of the bytes cross a link, not 14/8.
  EXPECT_THAT(table.rows[1].at(4), MatchesRegex("28[0-9] GB/s, 6[0-9]\\.[0-9] %"));
  const FindingTable devices =
      predict_scaling(asked("--scheme data-parallel"), kH200, {1, 2}).tables.at(1);
  ASSERT_EQ(devices.rows.size(), 2U);
  EXPECT_EQ(devices.rows[0].at(1), "broadcast");
  EXPECT_EQ(devices.rows[1].at(1), "reduce");
  const Findings alone = predict_scaling(asked("--batch-size 1 --scheme data-parallel"),
                                         load_card("h200-nvlink"), {1, 8});
  EXPECT_EQ(alone.tables.at(1).title, "Simulated: products by shape") << "one device has the row";
}

TEST(Predictions, ShowTheRateOfEachProductByItsShape) {
  const auto rates = [](std::int64_t dim) {
    return predict_scaling(asked(fmt::format("--dim {}", dim)), kH200, {1}).tables.at(1);
  };
  const FindingTable wide = rates(8192);
  EXPECT_EQ(wide.title, "Simulated: products by shape");
  ASSERT_EQ(wide.rows.size(), 3U);
  EXPECT_THAT(wide.rows[0],
              ElementsAre("1", "gemm nt", "64 x 8192 x 8192", "190 us", "45.7 TFLOP/s"));
  EXPECT_EQ(wide.rows[1].at(2), "8192 x 8192 x 64");
  EXPECT_LT(std::stod(rates(512).rows[0].back()), 10) << "TFLOP/s of a narrow one";
}

// At this batch and width, factors have 128 times fewer bytes than gradients, but each rank then
// runs the whole optimizer step.
TEST(Predictions, GatherFactorsFasterThanTheySumGradients) {
  const double one = predicted_step({}, kH200, 1).step_s;
  const double ddp = predicted_step({}, kH200, 2).step_s;
  const double factor = predicted_step(asked("--scheme factor"), kH200, 2).step_s;
  EXPECT_GT(ddp, one);
  EXPECT_LT(factor, one);
  EXPECT_EQ(predicted_step(asked("--scheme factor"), kH200, 1).step_s, one);
}

/// As nn.DataParallel does.
TEST(Predictions, UseNoMoreDevicesThanThereAreSamples) {
  EXPECT_EQ(predict_scaling(asked("--batch-size 4 --scheme data-parallel"),
                            load_card("h200-nvlink"), {1, 8})
                .tables.front()
                .rows.size(),
            2U);
}

}  // namespace
}  // namespace barestep
