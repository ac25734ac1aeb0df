// Recomputation: the same bits as training without it, in every scheme, and its savings and costs.

#include "core/plan.h"
#include "core/program.h"
#include "kernels/make_device.h"
#include "parallel/schemes/data_parallel.h"
#include "parallel/schemes/scheme_of.h"
#include "parallel/schemes/zero.h"
#include "support/file_runs.h"
#include "support/layers.h"
#include "support/rank_run.h"
#include "support/sanitized.h"
#include "support/spread_run.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "support/trainer_harness.h"
#include "train/recomputation.h"

namespace barestep {
namespace {

/// Seven layers of different widths.
TrainConfig deep(std::int64_t segments) {
  TrainConfig config = rank_config();
  config.model.layers = {6, 9, 7, 12, 5, 8, 11, 4};
  config.training.recompute = segments;
  return config;
}

std::vector<int> recomputed_layers(const Program& program) {
  std::vector<int> layers;
  for (const Node& node : program.nodes()) {
    if (node.phase == Phase::kRecompute) layers.push_back(layer_of(node));
  }
  return layers;
}

TEST(Recompute, GoesThroughEachSegmentButTheLastOnceMoreUpToItsLastLayer) {
  const auto layers = [](std::int64_t segments) {
    return recomputed_layers(programs_of(deep(segments)).train().program);
  };
  EXPECT_THAT(layers(1), IsEmpty());
  EXPECT_THAT(layers(2), ElementsAre(0, 1));  // 3 layers and 4
  EXPECT_THAT(layers(3), ElementsAre(2, 0));  // 2, 2 and 3, backward first
  EXPECT_THAT(layers(4), IsEmpty());          // segments of one layer keep their results
  EXPECT_THAT(layers(7), IsEmpty());
}

TEST(Recompute, StandsBeforeTheSegmentsBackwardAndRepeatsTheOpsOfForward) {
  TrainConfig config = deep(2);
  config.model.dropout = 0.3;
  config.device.fusion = false;
  const StepPrograms programs = programs_of(config);
  const Program& program = programs.train().program;
  const auto texts = [&](Phase phase) {
    std::vector<std::string> all;
    for (const Node& node : program.nodes()) {
      if (node.phase == phase && layer_of(node) < 2) {
        all.push_back(std::to_string(layer_of(node)) + " " + std::string(label_of(node.op)));
      }
    }
    return all;
  };
  EXPECT_EQ(texts(Phase::kRecompute), texts(Phase::kForward));
  EXPECT_THAT(texts(Phase::kRecompute), ElementsAre("0 gemm", "0 bias_relu", "0 dropout", "1 gemm",
                                                    "1 bias_relu", "1 dropout"));
  bool is_recomputed = false;
  for (const Node& node : program.nodes()) {
    is_recomputed |= node.phase == Phase::kRecompute;
    if (node.phase == Phase::kBackward)
      EXPECT_EQ(is_recomputed, layer_of(node) <= 2) << layer_of(node);
  }
}

TEST(Recompute, HasTheBitsOfNoneWithEveryActivation) {
  Sample sample;
  for (const Activation activation : kValuesOf<Activation>) {
    for (const bool fusion : {true, false}) {
      TrainConfig config = deep(1);
      config.model.activation = activation;
      config.device.fusion = fusion;
      config.model.dropout = activation == Activation::kNone ? 0 : 0.4;
      const Trained none = train_single(config);
      for (const std::int64_t segments : {2, 3, 7}) {
        if (!sample.takes_next()) continue;
        config.training.recompute = segments;
        EXPECT_EQ(train_single(config), none) << name_of(activation) << " " << segments;
      }
    }
  }
}

TEST(Recompute, KeepsTheBitsWithMicroStepsClippingAndAccumulation) {
  TrainConfig parts = deep(1);
  parts.training.accumulate = 3;
  parts.model.dropout = 0.4;
  TrainConfig clipped = parts;
  clipped.training.clip_norm = 0.01;
  TrainConfig added = parts;
  added.training.zero_grad = false;
  for (TrainConfig config : {parts, clipped, added}) {
    const Trained none = train_single(config);
    config.training.recompute = 3;
    EXPECT_EQ(train_single(config), none);
  }
}

TEST(RecomputeOfRanks, HasTheBitsOfNoneWithDdpAndZero1) {
  for (const SchemeKind kind : {SchemeKind::kDdp, SchemeKind::kZero1}) {
    for (const Update update : {Update::kSeparate, Update::kPerBucket}) {
      if (kind != SchemeKind::kDdp && update == Update::kPerBucket) continue;
      for (const bool overlap : {true, false}) {
        TrainConfig config = deep(1);
        config.model.dropout = 0.4;
        config.model.activation = Activation::kGelu;
        config.parallel.scheme = kind;
        config.parallel.overlap = overlap;
        config.parallel.bucket_mib = 1e-4;
        config.training.update = update;
        config.training.accumulate = 2;
        const auto train = [&] {
          const auto scheme = scheme_of(config, {.first_bucket_bytes = 100});
          return train_threads_by(*scheme, 3, config);
        };
        const auto none = train();
        for (const std::int64_t segments : {2, 3}) {
          config.training.recompute = segments;
          EXPECT_EQ(train(), none) << name_of(kind) << " " << name_of(update) << " " << segments;
        }
      }
    }
  }
}

TEST(RecomputeOfDevices, HasTheBitsOfNone) {
  for (const int devices : {1, 2, 3}) {
    TrainConfig config = deep(1);
    config.model.dropout = 0.4;
    config.training.accumulate = 2;
    const SpreadRun none = train_spread(config, {.devices = devices});
    for (const std::int64_t segments : {2, 3}) {
      config.training.recompute = segments;
      EXPECT_EQ(train_spread(config, {.devices = devices}), none) << devices;
    }
  }
}

class RecomputeOfFiles : public TempDirTest {};

TEST_F(RecomputeOfFiles, HasTheBitsOfNoneInTrainingAndEvaluationAndAsAGraph) {
  TrainConfig config = class_run(folder());
  config.model.layers = {6, 12, 9, 7, 10, 4};
  const auto outcome = [&](std::int64_t segments, bool graph) {
    config.training.recompute = segments;
    config.device.graph = graph;
    TrainerHarness run(config);
    run.run();
    std::vector<float> all = run.losses();
    for (const EvaluationReport& report : run.evaluations) {
      all.push_back(static_cast<float>(report.loss));
    }
    const FlatWeights weights = run.trainer->weights();
    all.insert(all.end(), weights.begin(), weights.end());
    return all;
  };
  const std::vector<float> none = outcome(1, false);
  for (const bool graph : {false, true}) EXPECT_EQ(outcome(2, graph), none) << graph;
}

/// Bytes of the buffers whose name contains `part`, one slot of each.
std::int64_t bytes_named(const StepPrograms& programs, const std::string& part) {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : programs.buffers().all()) {
    const bool is_gradient = buffer.name.starts_with("grad");
    if (buffer.name.find(part) != std::string::npos && !is_gradient) bytes += buffer.bytes;
  }
  return bytes;
}

/// Measured: what torch.utils.checkpoint.checkpoint_sequential has saved at the end of forward for
/// 16 x (Linear(256), ReLU) with a batch of 64, in units of a layer's output: the input, the
/// target, and the outputs for backward.
TEST(Recompute, KeepsWhatPyTorchKeepsAtTheEndOfForward) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> measured = {
      {1, 18}, {2, 11}, {4, 9}, {8, 11}, {16, 18}};
  constexpr std::int64_t kUnit = std::int64_t{64} * 256 * 4;
  for (const auto& [segments, units] : measured) {
    TrainConfig config;
    config.model.dim = 256;
    config.model.depth = 16;
    config.training.recompute = segments;
    const StepPrograms programs = programs_of(config);
    EXPECT_EQ(bytes_named(programs, "out") + 2 * kUnit, units * kUnit) << segments;
  }
}

/// (L + 1) B D a without recomputation, (s + L / s) B D a with s equal segments, including the
/// input.
TEST(Recompute, KeepsTheOutputsOfTheFormula) {
  constexpr std::int64_t kDim = 32, kBatch = 8, kUnit = kDim * kBatch * 4;
  for (const std::int64_t layers : {6, 12, 64}) {
    for (std::int64_t segments = 1; segments <= layers; ++segments) {
      if (layers % segments != 0) continue;
      TrainConfig config;
      config.model.dim = kDim;
      config.model.depth = layers;
      config.data.batch_size = kBatch;
      config.training.recompute = segments;
      const StepPrograms programs = programs_of(config);
      const std::int64_t units = segments == 1 ? layers + 1 : segments + layers / segments;
      EXPECT_EQ(bytes_named(programs, "out") + kUnit, units * kUnit)
          << layers << " in " << segments;
    }
  }
}

TEST(Recompute, TakesLessMemoryOfActivationsAndOfNothingElse) {
  const MemoryPlan none(programs_of(deep(1)).buffers());
  const MemoryPlan plan(programs_of(deep(3)).buffers());
  for (const Category category : kValuesOf<Category>) {
    if (category == Category::kActivations) {
      EXPECT_LT(plan.category_bytes(0, category), none.category_bytes(0, category));
    } else {
      EXPECT_EQ(plan.category_bytes(0, category), none.category_bytes(0, category));
    }
  }
}

/// Multiply-adds of L equal layers: L forward, 2 L - 1 backward, and (s - 1) (L / s - 1)
/// recomputed.
TEST(Recompute, CostsTheProductsOfItsLayersOnceMore) {
  for (const std::int64_t segments : {2, 3, 4, 6}) {
    TrainConfig config;
    config.model.dim = 512;
    config.model.depth = 12;
    config.training.recompute = segments;
    const Price price = price_of(programs_of(config).train().program);
    const auto more = static_cast<double>(price.by_phase[Phase::kRecompute].flops);
    const auto products = static_cast<double>((segments - 1) * (12 / segments - 1));
    EXPECT_NEAR(more / (2.0 * 64 * 512 * 512), products, 0.01 * products) << segments;
  }
}

TrainConfig equal_layers(std::int64_t dim, std::int64_t depth, std::int64_t batch_size,
                         std::int64_t segments) {
  TrainConfig config;
  config.model.dim = dim;
  config.model.depth = depth;
  config.data.batch_size = batch_size;
  config.training.recompute = segments;
  return config;
}

/// Activations a B L D, state 16 L D^2: equal at B = 16 D / a, here 4 D.
TEST(Recomputation, PaysFromTheBatchAtWhichActivationsAreAsLargeAsTheState) {
  for (const std::int64_t dim : {1024, 8192}) {
    const Recomputation found = recomputation_of(programs_of(equal_layers(dim, 6, 64, 2)));
    EXPECT_NEAR(static_cast<double>(found.paying_batch_size) / static_cast<double>(4 * dim), 1,
                2e-3);
  }
}

/// Each rank and device has its share of the rows and the whole state.
TEST(Recomputation, PaysFromAsManyTimesTheBatchOnRanksAndDevices) {
  const TrainConfig config = equal_layers(64, 6, 64, 2);
  const std::int64_t one = recomputation_of(programs_of(config)).paying_batch_size;
  const DataParallel devices(4, false);
  EXPECT_EQ(recomputation_of(programs_of(config, &devices)).paying_batch_size, 4 * one);
  const auto ddp = scheme_of(config);
  EXPECT_EQ(recomputation_of(programs_by(*ddp, config, 1, 4)).paying_batch_size, 4 * one);
}

/// Calculated by hand: 64 layers of 1024 with a batch of 16,384 keep 64 outputs of 64 MiB, with 8
/// segments 15, and in both cases two gradients. 49 products in addition to 3 * 64
/// - 1.
TEST(Recomputation, SavesAndCostsWhatIsWorkedOutByHand) {
  const StepPrograms programs = programs_of(equal_layers(1024, 64, 16384, 8));
  const Recomputation found = recomputation_of(programs);
  constexpr std::int64_t kUnit = std::int64_t{64} << 20;
  EXPECT_EQ(found.activation_bytes_without, 66 * kUnit);
  EXPECT_EQ(found.activation_bytes, 17 * kUnit);
  EXPECT_NEAR(static_cast<double>(found.flops) / static_cast<double>(found.flops_without) - 1,
              49.0 / 191, 1e-3);
  const std::string text = recomputation_text(found);
  EXPECT_THAT(text, HasSubstr("Recomputation in 8 segments (calculated)\n"
                              "  saves 3.06 GiB of activations (74.2 %): 1.06 GiB instead of 4.12 "
                              "GiB\n"));
  EXPECT_THAT(text, HasSubstr("flops more in a step (25.7 %)\n"));
  EXPECT_THAT(text, HasSubstr("  pays off from a batch size of 4,10"));
  EXPECT_THAT(text, HasSubstr("optimizer together; this one is 16,384\n"));
}

TEST(Recomputation, OfSingleLayersSaysThatItSavesAndCostsNothing) {
  EXPECT_EQ(recomputation_text(recomputation_of(programs_of(deep(5)))),
            "Recomputation in 5 segments (calculated)\n"
            "  saves nothing and costs nothing: a segment of one layer keeps its output\n");
}

/// Tries every number of segments, one by one.
TEST(Recomputation, TakesTheSegmentsWithTheFewestFlopsThatFit) {
  const TrainConfig config = equal_layers(16, 12, 64, 1);
  const StepSpec spec = spec_of(config, DeviceKind::kCpu, nullptr);
  struct Choice {
    std::int64_t bytes, flops;
  };
  std::map<int, Choice> all;
  for (int segments = 1; segments <= 12; ++segments) {
    StepSpec trial = spec;
    trial.model.segments = segments;
    const StepPrograms programs(trial);
    all[segments] = {MemoryPlan(programs.buffers()).device_bytes(0),
                     price_of(programs.train().program).total.flops};
  }
  std::set<int> taken;
  std::int64_t min = all[1].bytes;
  for (const auto& [segments, choice] : all) min = std::min(min, choice.bytes);
  for (std::int64_t available = all[1].bytes; available >= min; available -= 1024) {
    const int found = cheapest_segments(spec, nullptr, [&](const StepPrograms& programs) {
      return MemoryPlan(programs.buffers()).device_bytes(0) <= available;
    });
    EXPECT_LE(all[found].bytes, available);
    for (const auto& [segments, choice] : all) {
      if (choice.bytes <= available) EXPECT_LE(all[found].flops, choice.flops) << segments;
    }
    taken.insert(found);
  }
  EXPECT_GT(taken.size(), 2U) << "less memory asks for other segments";
  const int nearest = cheapest_segments(spec, nullptr, [](const StepPrograms&) { return false; });
  EXPECT_EQ(all[nearest].bytes, min) << "where none fits, the one that needs least";
}

TEST(Recomputation, PlansFewOfTheManyNumbersOfSegmentsOfADeepModel) {
  const StepSpec spec = spec_of(equal_layers(4, 1000, 2, 1), DeviceKind::kCpu, nullptr);
  int planned = 0;
  cheapest_segments(spec, nullptr, [&](const StepPrograms&) { return ++planned < 0; });
  EXPECT_LT(planned, 15);
}

}  // namespace
}  // namespace barestep
