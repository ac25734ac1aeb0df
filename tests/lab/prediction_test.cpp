#include "lab/prediction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/program.h"
#include "lab/experiment.h"
#include "lab/machine_card.h"
#include "lab/made_up.h"
#include "lab/simulator.h"
#include "lab/workload.h"
#include "support/expect_error.h"

namespace barestep {
namespace {

using ::testing::HasSubstr;

/// A step of DDP by hand, in which only products and sums of gradients take time.
TEST(Simulator, OverlapsCommunicationWithBackward) {
  const Workload workload = made_up_workload(1024, 2, TrainerKind::kDdp, 2);
  const WorkloadPrograms programs(workload);
  const auto seconds = [](double all_reduce) {
    return [all_reduce](const Node& node) {
      if (std::holds_alternative<Collective>(node.op)) {
        const auto& op = std::get<AllReduce>(std::get<Collective>(node.op));
        return op.tensors.front().size() > 1000 ? all_reduce : 0.0;
      }
      return std::get_if<Gemm>(&std::get<DeviceOp>(node.op)) != nullptr ? 1.0 : 0.0;
    };
  };
  // Forward 2, backward: weight gradient and input gradient of layer 1, weight gradient of layer 0.
  EXPECT_DOUBLE_EQ(simulate(programs.step(), seconds(0)).step_s, 5);
  const SimulatedStep step = simulate(programs.step(), seconds(3));
  EXPECT_DOUBLE_EQ(step.phase_s[Phase::kForward], 2);
  EXPECT_DOUBLE_EQ(step.phase_s[Phase::kBackward], 3);
  double sum = 0;
  for (const double part : step.phase_s) sum += part;
  EXPECT_DOUBLE_EQ(sum, step.step_s);
  // The first bucket is complete at 3 and reduced until 6, the second at 5 and until 9.
  EXPECT_DOUBLE_EQ(step.step_s, 9);
  EXPECT_DOUBLE_EQ(step.phase_s[Phase::kReduce], 4);
}

/// Two lanes that need the core of the one that computes.
TEST(Simulator, SharesCoresAmongLanes) {
  const Workload workload = made_up_workload(1024, 2, TrainerKind::kDdp, 2);
  const WorkloadPrograms programs(workload);
  const auto seconds = [](const Node& node) {
    if (const auto* collective = std::get_if<Collective>(&node.op)) {
      return std::get<AllReduce>(*collective).tensors.front().size() > 1000 ? 3.0 : 0.0;
    }
    return std::get_if<Gemm>(&std::get<DeviceOp>(node.op)) != nullptr ? 1.0 : 0.0;
  };
  // As above, the first bucket is complete at 3. Two products of backward are left, which share the
  // core with its sum: both take twice as long, until 7; one second of the sum is left, and three
  // of the other bucket's.
  const SimulatedStep shared = simulate(programs.step(), seconds, 1);
  EXPECT_DOUBLE_EQ(shared.step_s, 11) << "all the work of one core";
  EXPECT_DOUBLE_EQ(shared.phase_s[Phase::kBackward], 5);
  EXPECT_DOUBLE_EQ(shared.phase_s[Phase::kReduce], 4);
  EXPECT_DOUBLE_EQ(simulate(programs.step(), seconds, 2).step_s, 9) << "a core for each lane";
  EXPECT_DOUBLE_EQ(simulate(programs.step(), seconds, 0.5).step_s, 22) << "two ranks on a core";
  // Four of the eleven seconds, in which both lanes want the core, take twice as long.
  EXPECT_DOUBLE_EQ(simulate(programs.step(), seconds, 1, 2).step_s, 15);
}

TEST(Simulator, NeedsNoCoreForAPause) {
  Workload workload = made_up_workload(8, 1, TrainerKind::kDdp, 2);
  workload.config.injected.delay_ms = 10;
  const WorkloadPrograms programs(workload);
  const auto pause = [](const Node& node) {
    const auto* op = std::get_if<DeviceOp>(&node.op);
    const auto* delay = op == nullptr ? nullptr : std::get_if<Delay>(op);
    return delay == nullptr ? 0.0 : delay->seconds;
  };
  EXPECT_DOUBLE_EQ(simulate(programs.step(), pause, 0.5).step_s, 0.01);
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
  EXPECT_THAT(products,
              testing::ElementsAre("gemm nt", "gemm nt", "gemm tn", "gemm nn", "gemm tn"));
}

/// A measured machine of two cores: a product runs at 100 or at 60 GFLOP/s, and everything else
/// takes no time but what the host adds.
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
                {.ranks = 2,
                 .threads = 1,
                 .host_s = 2e-3,
                 .rates = rates(50e9),
                 .all_reduce = {{4, 1e-9}, {1 << 20, 1e-3}, {4 << 20, 4e-3}}}};
  card.node.table = {2, card.loads.back().all_reduce};
  return card;
}

TEST(MeasuredMachines, PredictRunsByTheLoadThatIsNearest) {
  const MachineCard card = two_cores();
  EXPECT_EQ(card.load_of(1, 2), &card.loads[0]);
  EXPECT_EQ(card.load_of(1, 1), &card.loads[1]);
  EXPECT_EQ(card.load_of(4, 1), &card.loads[2]);
  EXPECT_EQ(card.load_of(2, 3), &card.loads[2]);
  EXPECT_EQ(load_card("h200-nvlink").load_of(2, 0), nullptr);
  const double flops = 5 * 2.0 * 64 * 1024 * 1024;  // of two layers
  const Workload one = made_up_workload(1024, 2);
  EXPECT_NEAR(predicted_run(one, card).step_s, flops / 100e9 + 1e-3, 1e-5);
  Workload rank = one;
  rank.trainer = TrainerKind::kDdp;
  rank.config.device.threads = 1;
  EXPECT_NEAR(predicted_run(rank, card).step_s, flops / 60e9 + 1e-3, 1e-5);
  // Two ranks have half of the rows each, and sum 8 MiB in two buckets on the cores they compute
  // with.
  rank.ranks = 2;
  EXPECT_NEAR(predicted_run(rank, card).step_s, flops / 2 / 50e9 + 8e-3 + 2e-3, 1e-4);
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
  EXPECT_TRUE(prediction_findings({&results}).sentences.empty());
  for (const double backward : {0.075, 0.107, 9.0}) {  // 4 ranks are beyond the cores
    SimulatedStep step{.step_s = 0.03 + backward};
    step.phase_s[Phase::kForward] = 0.03;
    step.phase_s[Phase::kBackward] = backward;
    results.predictions.push_back(step);
  }
  const auto summary = prediction_summary({&results});
  EXPECT_EQ(summary.value().runs, 2);
  EXPECT_EQ(summary.value().beyond_cores, 1);
  EXPECT_NEAR(summary.value().median_error, (0.05 + 0.37) / 2, 1e-3);
  EXPECT_EQ(summary.value().within_tenth, 0.5);
  const Findings findings = prediction_findings({&results});
  EXPECT_THAT(
      sentences_of(findings),
      testing::AllOf(HasSubstr("median error over 2 runs within the cores is 21.0 % (goal"),
                     HasSubstr("1 run is further off than a tenth, 1 of them mostly by what "
                               "was predicted for backward."),
                     HasSubstr("1 run beyond the cores is shown")));
  EXPECT_EQ(findings.tables.front().rows.at(0).at(3), "+5.0 %");
  EXPECT_EQ(findings.tables.front().rows.at(1).at(4), "backward +37.0 ms");
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
  EXPECT_NEAR(node_s(*gemm, card, 1), static_cast<double>(cost_of(gemm->op).flops) / 52e12, 1e-12);
  card.memory_bytes_per_s = 1e9;
  // 28 bytes a parameter: four numbers read, three written.
  EXPECT_NEAR(node_s(*adam, card, 1), 28.0 * (1024 * 1024 + 1024) / 1e9, 1e-6);
}

TEST(Predictions, AgreeWithCalculationsByHand) {
  // 402,702,336 parameters on 4.3 TB/s: Adam moves 28 bytes of each.
  const MachineCard h200 = load_card("h200-nvlink");
  const SimulatedStep one = predicted_step({}, h200, 1);
  EXPECT_NEAR(one.phase_s[Phase::kOptimizer], 28 * 402'702'336.0 / 4.3e12, 1e-5);
  // 51.5 GFLOP at 52 TFLOP/s.
  EXPECT_NEAR(one.phase_s[Phase::kForward], 51.54e9 / 52e12, 5e-5);
  EXPECT_EQ(one.phase_s[Phase::kReduce], 0);
}

TEST(Predictions, TurnRoundWithTheMachine) {
  const MachineCard h200 = load_card("h200-nvlink");
  MachineCard fast = h200;
  for (auto& point : fast.node.table.seconds_by_bytes) point.second = 1e-9;
  fast.node.latency_s = fast.node.hop_s = 0;
  EXPECT_THAT(predict_scaling({}, h200, {1, 2, 4}).sentences.front(),
              HasSubstr("Simulated: 1 rank would train fastest"));
  EXPECT_THAT(predict_scaling({}, fast, {1, 2, 4}).sentences.front(),
              HasSubstr("Simulated: 4 ranks would train fastest"));
  EXPECT_THAT(predict_scaling({}, h200, {1}).sentences.back(),
              HasSubstr("at a batch of 64, at no width up to 131072"));
  EXPECT_THAT(predict_scaling({}, fast, {1}).sentences.back(),
              HasSubstr("at a batch of 64, from a width of"));
}

// Factors are 128 times fewer bytes than gradients at this batch and width, and each rank then
// takes the whole step of the optimizer.
TEST(Predictions, GatherFactorsFasterThanTheySumGradients) {
  const MachineCard h200 = load_card("h200-nvlink");
  const double one = predicted_step({}, h200, 1).step_s;
  const double ddp = predicted_step({}, h200, 2).step_s;
  const double factor = predicted_step({.scheme = RankScheme::kFactor}, h200, 2).step_s;
  EXPECT_GT(ddp, one);
  EXPECT_LT(factor, one);
  EXPECT_EQ(predicted_step({.scheme = RankScheme::kFactor}, h200, 1).step_s, one);
}

TEST(Predictions, RefuseWhatTheMachineHasNot) {
  const MachineCard h200 = load_card("h200-nvlink");
  expect_error(ExitCode::kConfiguration, "--ranks '16': 8 x H200, NVLink has 8; ask for fewer",
               [&] {
                 predict_scaling({}, h200, {1, 16});
               });
  expect_error(
      ExitCode::kConfiguration,
      "--batch-size '64': leaves some of 128 ranks without a sample; ask for fewer ranks, or "
      "give --batch-per-rank",
      [] { predict_scaling({}, load_card("h100-infiniband"), {128}); });
}

}  // namespace
}  // namespace barestep
