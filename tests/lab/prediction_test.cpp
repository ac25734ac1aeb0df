#include "lab/prediction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/program.h"
#include "lab/experiment.h"
#include "lab/machine_card.h"
#include "lab/made_up.h"
#include "lab/simulator.h"
#include "lab/workload.h"

namespace barestep {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

/// A step of DDP calculated by hand, in which only products and sums of gradients take time.
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
  // Forward 2; backward: weight gradient and input gradient of layer 1, weight gradient of layer 0.
  EXPECT_DOUBLE_EQ(simulate(programs.step(), seconds(0)).step_s, 5);
  const SimulatedStep step = simulate(programs.step(), seconds(3));
  EXPECT_DOUBLE_EQ(step.phase_s[Phase::kForward], 2);
  EXPECT_DOUBLE_EQ(step.phase_s[Phase::kBackward], 3);
  double sum = 0;
  for (const double part : step.phase_s) sum += part;
  EXPECT_DOUBLE_EQ(sum, step.step_s);
  // The first bucket is complete at 3 and reduced by 6, the second complete at 5 and reduced by 9.
  EXPECT_DOUBLE_EQ(step.step_s, 9);
  EXPECT_DOUBLE_EQ(step.phase_s[Phase::kReduce], 4);
}

/// Two lanes that compete for the core that computes.
TEST(Simulator, SharesCoresAmongLanes) {
  const Workload workload = made_up_workload(1024, 2, TrainerKind::kDdp, 2);
  const WorkloadPrograms programs(workload);
  const auto seconds = [](const Node& node) {
    if (const auto* collective = std::get_if<Collective>(&node.op)) {
      return std::get<AllReduce>(*collective).tensors.front().size() > 1000 ? 3.0 : 0.0;
    }
    return std::get_if<Gemm>(&std::get<DeviceOp>(node.op)) != nullptr ? 1.0 : 0.0;
  };
  // As above, the first bucket is complete at 3. The two remaining products of backward share the
  // core with its sum, so both take twice as long, until 7. Then one second of the sum is left, and
  // three seconds of the other bucket's sum.
  const SimulatedStep shared = simulate(programs.step(), seconds, {.at_once = 1});
  EXPECT_DOUBLE_EQ(shared.step_s, 11) << "all the work of one core";
  EXPECT_DOUBLE_EQ(shared.phase_s[Phase::kBackward], 5);
  EXPECT_DOUBLE_EQ(shared.phase_s[Phase::kReduce], 4);
  EXPECT_DOUBLE_EQ(simulate(programs.step(), seconds, {.at_once = 2}).step_s, 9)
      << "a core for each lane";
  EXPECT_DOUBLE_EQ(simulate(programs.step(), seconds, {.at_once = 0.5}).step_s, 22)
      << "two ranks on a core";
  // Four of the eleven seconds, in which both lanes need the core, take twice as long.
  EXPECT_DOUBLE_EQ(simulate(programs.step(), seconds, {.at_once = 1, .contention = 2}).step_s, 15);
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
  EXPECT_DOUBLE_EQ(simulate(programs.step(), pause, {.at_once = 0.5}).step_s, 0.01);
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
                {.ranks = 2,
                 .threads = 1,
                 .host_s = 2e-3,
                 .rates = rates(50e9),
                 .all_reduce = {{4, 1e-9}, {1 << 20, 1e-3}, {4 << 20, 4e-3}}}};
  card.node.tables = {{2, card.loads.back().all_reduce}};
  return card;
}

TEST(MeasuredMachines, PredictRunsByTheLoadThatIsNearest) {
  const MachineCard card = two_cores();
  EXPECT_EQ(card.load_of(1, 2), &card.loads[0]);
  EXPECT_EQ(card.load_of(1, 1), &card.loads[1]);
  EXPECT_EQ(card.load_of(4, 1), &card.loads[2]);
  EXPECT_EQ(card.load_of(2, 3), &card.loads[2]);
  EXPECT_EQ(load_card("h200-nvlink").load_of(2, 0), nullptr);
  const double flops = 5 * 2.0 * 64 * 1024 * 1024;  // for two layers
  const Workload one = made_up_workload(1024, 2);
  EXPECT_NEAR(predicted_run(one, card).step_s, flops / 100e9 + 1e-3, 1e-5);
  Workload rank = one;
  rank.trainer = TrainerKind::kDdp;
  rank.config.device.threads = 1;
  EXPECT_NEAR(predicted_run(rank, card).step_s, flops / 60e9 + 1e-3, 1e-5);
  // Two ranks have half of the rows each, and sum 8 MiB in two buckets on the cores that also
  // compute.
  rank.ranks = 2;
  EXPECT_NEAR(predicted_run(rank, card).step_s, flops / 2 / 50e9 + 8e-3 + 2e-3, 1e-4);
}

// Two ranks on one GPU, as in experiments on a machine with one GPU.
TEST(MeasuredMachines, PredictRanksThatShareAGpu) {
  MachineCard card = two_cores();
  card.on_gpu = true;
  card.node_ranks = 1;
  card.node.tables.clear();
  card.loads.resize(1);
  card.loads.front().threads = 0;
  Workload workload = made_up_workload(1024, 2, TrainerKind::kDdp, 2);
  workload.on_gpu = true;
  EXPECT_GT(predicted_run(workload, card).step_s, 0);
}

TEST(MeasuredMachines, SayThatCommunicationTakesCores) {
  const Findings findings = predict_scaling({.dim = 256}, two_cores(), {1, 2});
  EXPECT_EQ(findings.tables.at(1).rows.at(0).at(3), "a share of the cores, 1.00x as long");
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
  EXPECT_THAT(sentences_of(findings),
              testing::AllOf(
                  HasSubstr("The simulation's median error over 2 distinct predictions within the "
                            "cores is 21.0 % (goal"),
                  HasSubstr("1 prediction is off by more than a tenth; the part with the largest "
                            "error is backward in 1 of them."),
                  HasSubstr("1 prediction beyond the cores is shown")));
  EXPECT_EQ(findings.tables.front().rows.at(0).at(3), "+5.0 %");
  EXPECT_EQ(findings.tables.front().rows.at(1).at(4), "backward +37.0 ms");
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
  EXPECT_EQ(findings.tables.front().rows.size(), 9U) << "each case has a row";
}

TEST(CanPredict, IsFalseForPrecisionsWithoutARate) {
  MachineCard card = load_card("h200-nvlink");
  Workload workload = made_up_workload(64, 1);
  const auto can = [&](Precision precision) {
    workload.config.device.precision = precision;
    return can_predict(workload, card);
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
  EXPECT_TRUE(prediction_findings({&results}).sentences.empty());
  results.predictions.front() = SimulatedStep{.step_s = 0.105};
  const Findings findings = prediction_findings({&results});
  EXPECT_THAT(sentences_of(findings), HasSubstr("error over 1 distinct prediction within"));
  EXPECT_EQ(findings.tables.front().rows.size(), 1U);
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
  // 64 x 1024 numbers make 8 tiles; sums over 1024 are split in two.
  card.multiprocessors = 132;
  EXPECT_NEAR(seconds(*gemm), flops / 52e12 * 132 / 16, 1e-12);
  card.memory_bytes_per_s = 1e9;
  // 28 bytes per parameter: four numbers read, three written.
  EXPECT_NEAR(seconds(*adam), 28.0 * (1024 * 1024 + 1024) / 1e9, 1e-6);
}

TEST(Simulator, SlowsKernelsBesideACollective) {
  const Workload workload = made_up_workload(1024, 2, TrainerKind::kDdp, 2);
  const WorkloadPrograms programs(workload);
  const auto seconds = [](const Node& node) {
    if (const auto* collective = std::get_if<Collective>(&node.op)) {
      return std::get<AllReduce>(*collective).tensors.front().size() > 1000 ? 3.0 : 0.0;
    }
    return std::get_if<Gemm>(&std::get<DeviceOp>(node.op)) != nullptr ? 1.0 : 0.0;
  };
  // The first bucket is reduced from 3 to 6. Meanwhile, one of the two remaining products takes 2
  // seconds, and half of the other is done; it ends at 6.5, and the second bucket 3 later.
  const SimulatedStep step = simulate(programs.step(), seconds, {.kernel_slowdown = 2});
  EXPECT_DOUBLE_EQ(step.phase_s[Phase::kBackward], 1 + 2 + 1.5);
  EXPECT_DOUBLE_EQ(step.step_s, 9.5);
}

TEST(Products, FillAGpuByTheirShape) {
  const auto share = [](std::int64_t rows, std::int64_t cols, std::int64_t depth, int gpu) {
    return busy_share({rows, cols, depth}, gpu);
  };
  EXPECT_DOUBLE_EQ(share(8192, 8192, 64, 132), 4096.0 / (32 * 132)) << "32 rounds of tiles";
  EXPECT_DOUBLE_EQ(share(256, 4096, 1000, 80), 64.0 / 80) << "sums too short to split";
  EXPECT_DOUBLE_EQ(share(256, 4096, 4096, 80), 1) << "64 tiles, each split in 5";
  EXPECT_DOUBLE_EQ(share(64, 8192, 8192, 132), 128.0 / 132) << "sums are split in two";
  EXPECT_DOUBLE_EQ(share(8, 8192, 8192, 128), 8.0 / 32) << "tiles are mostly empty";
  EXPECT_DOUBLE_EQ(share(1, 1, 1, 132), 1.0 / (32 * 32) / 132);
}

Workload on_gpus(TrainerKind trainer, int ranks) {
  Workload workload = made_up_workload(8192, 6, trainer, ranks);
  workload.on_gpu = true;
  workload.gpus = ranks;
  return workload;
}

// LinearAdam sums in fp32 on all devices.
TEST(Products, AreFasterInTf32UnlessTheyUpdateToo) {
  MachineCard h200 = load_card("h200-nvlink");
  h200.memory_bytes_per_s = 1e18;
  Workload workload = on_gpus(TrainerKind::kSingle, 1);
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
  const MachineCard h200 = load_card("h200-nvlink");
  Workload workload = on_gpus(TrainerKind::kDdp, 4);
  const SimulatedStep even = predicted_run(workload, h200);
  workload.config.injected.slow_rank = SlowRank{.rank = 0, .delay_ms = 10};
  const SimulatedStep own = predicted_run(workload, h200);
  EXPECT_NEAR(own.phase_s[Phase::kInjected], 0.010, 1e-4);
  EXPECT_NEAR(own.step_s, even.step_s + 0.010, 1e-4);
  workload.config.injected.slow_rank->rank = 3;
  const SimulatedStep other = predicted_run(workload, h200);
  EXPECT_NEAR(other.phase_s[Phase::kInjected], 0, 1e-4);
  EXPECT_NEAR(other.step_s, own.step_s, 1e-6);
  EXPECT_NEAR(other.phase_s[Phase::kReduce], own.phase_s[Phase::kReduce] + 0.010, 1e-4);
}

TEST(DataParallelOnGpus, MovesRowsOverTheLink) {
  const MachineCard h200 = load_card("h200-nvlink");
  const Workload workload = on_gpus(TrainerKind::kDataParallel, 2);
  const WorkloadPrograms programs(workload);
  int copies = 0;
  for (const Node& node : programs.step().nodes()) {
    if (node.lane != Lane::kComm || label_of(node.op) != "copy") continue;
    ++copies;
    EXPECT_DOUBLE_EQ(node_s(programs.step(), node, h200, {.ranks = 2}),
                     all_reduce_s(h200, 32.0 * 8192 * 4, 2));
  }
  EXPECT_EQ(copies, 3) << "samples out, outputs in, their gradient out";
}

TEST(Predictions, AgreeWithCalculationsByHand) {
  // 402,702,336 parameters at 4.3 TB/s: Adam moves 28 bytes per parameter.
  const MachineCard h200 = load_card("h200-nvlink");
  const SimulatedStep one = predicted_step({}, h200, 1);
  EXPECT_NEAR(one.phase_s[Phase::kOptimizer], 28 * 402'702'336.0 / 4.3e12, 1e-5);
  // 51.5 GFLOP at 52 TFLOP/s, on 128 of 132 multiprocessors.
  EXPECT_NEAR(one.phase_s[Phase::kForward], 51.54e9 / 52e12 * 132 / 128, 5e-5);
  EXPECT_EQ(one.phase_s[Phase::kReduce], 0);
}

TEST(FastestSentence, TurnsRoundWithTheRatesAndNamesTies) {
  EXPECT_EQ(fastest_sentence(100, {{1, 100}}, "rank"),
            "Simulated: one rank would train 100 samples/s.");
  EXPECT_EQ(fastest_sentence(100, {{1, 100}, {2, 180}, {4, 310}}, "rank"),
            "Simulated: 4 ranks would train fastest, 310 samples/s, 3.10x as many as one rank.");
  EXPECT_EQ(fastest_sentence(100, {{1, 100}, {2, 179}, {4, 180}}, "device"),
            "Simulated: 2 and 4 devices would train fastest and tie within 1 %, 180 samples/s, "
            "1.80x as many as one device.");
  EXPECT_EQ(fastest_sentence(100, {{1, 100}, {2, 80}, {4, 70}}, "rank"),
            "Simulated: 2 and 4 ranks would be no faster than one rank, which trains 100 "
            "samples/s; the best would reach 80.0 % of that.");
  EXPECT_EQ(fastest_sentence(100, {{1, 100}, {2, 70}, {4, 100.9}}, "rank"),
            "Simulated: 2 and 4 ranks would be no faster than one rank, which trains 100 "
            "samples/s; 4 ranks would tie with it within 1 %.");
  EXPECT_EQ(fastest_sentence(100, {{2, 80}}, "rank"),
            "Simulated: 2 ranks would be no faster than one rank, which trains 100 samples/s; the "
            "best would reach 80.0 % of that.");
}

MachineCard with_fast_links() {
  MachineCard fast = load_card("h200-nvlink");
  for (AllReduceTable& table : fast.node.tables) {
    for (auto& point : table.seconds_by_bytes) point.second = 1e-9;
  }
  fast.node.latency_s = fast.node.hop_s = 0;
  fast.node.kernel_slowdown = 1;
  return fast;
}

TEST(Predictions, TurnRoundWithTheMachine) {
  const MachineCard h200 = load_card("h200-nvlink");
  const MachineCard fast = with_fast_links();
  EXPECT_THAT(predict_scaling({}, h200, {1, 2, 4}).sentences.front(),
              HasSubstr("Simulated: 2 and 4 ranks would be no faster than one rank"));
  EXPECT_THAT(predict_scaling({}, fast, {1, 2, 4}).sentences.front(),
              HasSubstr("Simulated: 4 ranks would train fastest"));
  EXPECT_THAT(
      predict_scaling({}, h200, {1}).sentences.back(),
      MatchesRegex("Simulated: at width 8192 two ranks are faster than one, by more than 1 "
                   "%, from a batch of [0-9]+; at a batch of 64 at no width up to 131072\\."));
  EXPECT_THAT(predict_scaling({}, fast, {1}).sentences.back(),
              MatchesRegex(".*; at a batch of 64 from a width of [0-9]+\\."));
  EXPECT_THAT(predict_scaling({.batch_size = 1}, fast, {1}).sentences.back(),
              HasSubstr("; a batch of 1 cannot be divided."));
  EXPECT_THAT(predict_scaling({}, load_card("t4"), {1}).sentences.back(),
              HasSubstr("The machine has one device, so two ranks cannot pay off."));
  // With such slow links, two ranks pay off at no batch.
  MachineCard slow = h200;
  slow.node.latency_s = 100;
  EXPECT_THAT(predict_scaling({}, slow, {1}).sentences.back(),
              HasSubstr("by more than 1 %, at no batch up to 1048576; at a batch of 64 at no"));
}

// A tie: two ranks lose to communication and other costs exactly what they save.
TEST(Predictions, CallATieNoGain) {
  MachineCard card = with_fast_links();
  const PredictedModel model{.scheme = RankScheme::kDdp};
  const double one = predicted_step(model, card, 1).step_s;
  // The loss is reduced too, but backward hides it.
  card.node.latency_s = one - predicted_step(model, card, 2).step_s;
  double low = 0, high = card.node.latency_s;
  for (int i = 0; i < 60; ++i) {
    card.node.latency_s = (low + high) / 2;
    (predicted_step(model, card, 2).step_s < one ? low : high) = card.node.latency_s;
  }
  card.node.latency_s = low - 0.0005 * one;  // per exchange: slightly faster than one rank
  const std::string sentence = predict_scaling(model, card, {1, 2}).sentences.front();
  EXPECT_THAT(sentence, HasSubstr("2 ranks would be no faster than one rank"));
  EXPECT_THAT(sentence, HasSubstr("2 ranks would tie with it within 1 %."));
}

TEST(Predictions, CoverEverySchemeByTheNameThatUsersGive) {
  const MachineCard h200 = load_card("h200-nvlink");
  EXPECT_THAT(scheme_names(), testing::ElementsAre("ddp", "zero1", "factor", "data-parallel"));
  std::set<double> steps;
  for (std::size_t i = 0; i < scheme_names().size(); ++i) {
    PredictedModel model;
    choose_scheme(model, i);
    const Findings findings = predict_scaling(model, h200, {1, 4});
    EXPECT_THAT(findings.tables.front().title,
                HasSubstr("Simulated: " + std::string(scheme_names()[i]) + ", 8192 x 6, batch 64"));
    EXPECT_EQ(findings.tables.front().columns.front(), model.data_parallel ? "devices" : "ranks");
    steps.insert(predicted_step(model, h200, 4).step_s);
  }
  EXPECT_EQ(steps.size(), 4U);
  // Parameters to the devices, gradients back, all through device 0, none of it hidden.
  EXPECT_GT(predicted_step({.data_parallel = true}, h200, 4).step_s,
            predicted_step({}, h200, 4).step_s);
}

TEST(Predictions, TakePausesAndPrecision) {
  const MachineCard h200 = load_card("h200-nvlink");
  const double plain = predicted_step({}, h200, 2).step_s;
  EXPECT_NEAR(predicted_step({.delay_ms = 20}, h200, 2).step_s, plain + 0.020, 1e-4);
  EXPECT_NEAR(predicted_step({.slow_rank = SlowRank{1, 20}}, h200, 2).step_s, plain + 0.020, 1e-4);
  EXPECT_EQ(predicted_step({.slow_rank = SlowRank{1, 20}}, h200, 1).step_s,
            predicted_step({}, h200, 1).step_s)
      << "a rank alone has no slow one";
  EXPECT_LT(predicted_step({.precision = Precision::kTf32}, h200, 1).step_s,
            0.8 * predicted_step({}, h200, 1).step_s);
  const PredictedModel model{
      .precision = Precision::kTf32, .delay_ms = 5, .slow_rank = SlowRank{2, 20}};
  const Findings findings = predict_scaling(model, h200, {1, 4});
  EXPECT_EQ(findings.tables.front().title,
            "Simulated: ddp, 8192 x 6, batch 64, tf32, 5 ms before backward, 20 ms more on rank 2 "
            "of several, on 8 x H200, NVLink");
  EXPECT_EQ(findings.sentences.size(), 1U) << "two ranks have no rank 2";
}

TEST(Predictions, TakeRecomputation) {
  const MachineCard h200 = load_card("h200-nvlink");
  const PredictedModel model{.depth = 12, .batch_size = 4096, .recompute = 3};
  const SimulatedStep plain = predicted_step({.depth = 12, .batch_size = 4096}, h200, 1);
  const SimulatedStep step = predicted_step(model, h200, 1);
  EXPECT_EQ(plain.phase_s[Phase::kRecompute], 0);
  // 2 segments of 4 layers, except the last layer of each: 6 of 12 layers.
  EXPECT_NEAR(step.phase_s[Phase::kRecompute] / plain.phase_s[Phase::kForward], 0.5, 0.01);
  EXPECT_NEAR(step.step_s, plain.step_s + step.phase_s[Phase::kRecompute], 1e-3 * step.step_s);
  const FindingTable table = predict_scaling(model, h200, {1, 2}).tables.front();
  EXPECT_THAT(table.title, HasSubstr("batch 4096, recomputed in 3 segments, on"));
  EXPECT_EQ(table.columns.at(3), "recompute");
  for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.columns.size());
}

TEST(Predictions, ShowWhatCommunicationReachesAndCosts) {
  const Findings findings = predict_scaling({}, load_card("h200-nvlink"), {1, 4, 8});
  const FindingTable& table = findings.tables.at(1);
  EXPECT_EQ(table.title, "Simulated: communication by number of ranks");
  ASSERT_EQ(table.rows.size(), 2U) << "one rank exchanges nothing";
  EXPECT_EQ(table.rows[0].at(1), "363 GB/s with 8.00 GiB");
  EXPECT_EQ(table.rows[1].at(1), "473 GB/s with 8.00 GiB");
  EXPECT_THAT(table.rows[1].at(2), HasSubstr("with 256.03 MiB"));
  EXPECT_EQ(table.rows[1].at(3), "1.22x as long");
  const Findings alone =
      predict_scaling({.batch_size = 1, .data_parallel = true}, load_card("h200-nvlink"), {1, 8});
  EXPECT_EQ(alone.tables.at(1).title, "Simulated: products by shape") << "one device has the row";
}

TEST(Predictions, ShowTheRateOfEachProductByItsShape) {
  const auto rates = [](std::int64_t dim) {
    return predict_scaling({.dim = dim}, load_card("h200-nvlink"), {1}).tables.at(1);
  };
  const FindingTable wide = rates(8192);
  EXPECT_EQ(wide.title, "Simulated: products by shape");
  ASSERT_EQ(wide.rows.size(), 3U);
  EXPECT_THAT(wide.rows[0],
              testing::ElementsAre("1", "gemm nt", "64 x 8192 x 8192", "173 us", "49.6 TFLOP/s"));
  EXPECT_EQ(wide.rows[1].at(2), "8192 x 8192 x 64");
  EXPECT_LT(std::stod(rates(512).rows[0].back()), 5) << "TFLOP/s of a narrow one";
}

// At this batch and width, factors have 128 times fewer bytes than gradients, but each rank then
// runs the whole optimizer step.
TEST(Predictions, GatherFactorsFasterThanTheySumGradients) {
  const MachineCard h200 = load_card("h200-nvlink");
  const double one = predicted_step({}, h200, 1).step_s;
  const double ddp = predicted_step({}, h200, 2).step_s;
  const double factor = predicted_step({.scheme = RankScheme::kFactor}, h200, 2).step_s;
  EXPECT_GT(ddp, one);
  EXPECT_LT(factor, one);
  EXPECT_EQ(predicted_step({.scheme = RankScheme::kFactor}, h200, 1).step_s, one);
}

/// As nn.DataParallel does.
TEST(Predictions, UseNoMoreDevicesThanThereAreSamples) {
  EXPECT_EQ(
      predict_scaling({.batch_size = 4, .data_parallel = true}, load_card("h200-nvlink"), {1, 8})
          .tables.front()
          .rows.size(),
      2U);
}

}  // namespace
}  // namespace barestep
