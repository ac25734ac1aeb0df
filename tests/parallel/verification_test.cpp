// --verify-every: steps that run again, and ranks that compare their states. Bits are flipped by
// --flip, whose place each message must name.
#include "train/verification.h"

#include "core/error.h"
#include "core/index.h"
#include "kernels/cpu/product.h"
#include "kernels/make_device.h"
#include "parallel/schemes/scheme_of.h"
#include "support/rank_run.h"
#include "support/spread_run.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// A way to train, on threads as ranks.
struct Way {
  const char* name;
  int ranks = 1;
  std::function<void(TrainConfig&)> change{};
};

TrainConfig config_with(const Way& way) {
  TrainConfig config = rank_config();
  config.model.layers = {12, 16, 8};
  config.data.batch_size = 12;
  config.optimizer = {.kind = OptimizerKind::kAdam};
  config.training.steps = 3;
  config.parallel.scheme = way.ranks == 1 ? SchemeKind::kSingle : SchemeKind::kDdp;
  config.parallel.bucket_mib = 0.0004;  // some buckets
  if (way.change) way.change(config);
  return config;
}

const std::vector<Way>& ways_of_one() {
  static const std::vector<Way> ways = {
      {"separate"},
      {"fused", 1, [](TrainConfig& c) { c.training.update = Update::kFused; }},
      {"no fusion", 1, [](TrainConfig& c) { c.device.fusion = false; }},
      {"accumulation and clipping", 1,
       [](TrainConfig& c) {
         c.training.accumulate = 3;
         c.training.clip_norm = 0.1;
       }},
      {"gradients that add up", 1, [](TrainConfig& c) { c.training.zero_grad = false; }},
      {"delayed gradients", 1, [](TrainConfig& c) { c.training.staleness = 1; }},
      {"recomputation and dropout", 1,
       [](TrainConfig& c) {
         c.training.recompute = 2;
         c.model.dropout = 0.2;
       }},
      {"bf16", 1, [](TrainConfig& c) { c.device.precision = Precision::kBf16; }},
      {"fp16", 1,
       [](TrainConfig& c) {
         c.device.precision = Precision::kFp16;
         c.training.loss_scale = LossScaling{.initial = 0x1p24, .window = 2};
       }},
      {"a transformer", 1,
       [](TrainConfig& c) {
         c.model = {.dim = 16,
                    .depth = 1,
                    .block = BlockKind::kTransformer,
                    .heads = 2,
                    .length = 4,
                    .ffn = 16};
         c.data.batch_size = 3;
       }},
      {"graphs", 1, [](TrainConfig& c) { c.device.graph = true; }},
      {"chunks", 1, [](TrainConfig& c) { c.training.chunk_rows = 5; }},
  };
  return ways;
}

/// The libraries of products that are here, with threads that share a product.
std::vector<Way> ways_of_libraries() {
  static const auto products_of = [](GemmProvider gemm) {
    return [gemm](TrainConfig& c) {
      c.model.layers = {300, 400, 200};
      c.data.batch_size = 64;
      c.device.gemm = gemm;
      c.device.threads = 3;
      c.training.steps = 20;
    };
  };
  std::vector<Way> ways;
  if (make_cblas_product()) ways.push_back({"CBLAS", 1, products_of(GemmProvider::kCblas)});
  if (make_onednn_product()) ways.push_back({"oneDNN", 1, products_of(GemmProvider::kOneDnn)});
  return ways;
}

const std::vector<Way>& ways_of_ranks() {
  static const auto scheme = [](SchemeKind kind) {
    return [kind](TrainConfig& c) { c.parallel.scheme = kind; };
  };
  static const std::vector<Way> ways = {
      {"ddp", 2},
      {"factor", 3, scheme(SchemeKind::kFactor)},
      {"zero1", 2, scheme(SchemeKind::kZero1)},
      {"zero2", 2, scheme(SchemeKind::kZero2)},
      {"zero3", 2, scheme(SchemeKind::kZero3)},
      {"server", 3, scheme(SchemeKind::kServer)},
      {"local SGD", 2, [](TrainConfig& c) { c.parallel.sync_every = 2; }},
      {"late gradients", 2, [](TrainConfig& c) { c.training.staleness = 1; }},
      {"tensor", 4, [](TrainConfig& c) { c.parallel.tensor = 2; }},
      {"pipeline", 4,
       [](TrainConfig& c) {
         c.parallel.pipeline = 2;
         c.parallel.micro_batches = 3;
       }},
      {"bf16 with accumulation", 2,
       [](TrainConfig& c) {
         c.device.precision = Precision::kBf16;
         c.training.accumulate = 2;
       }},
      {"chunks", 2, [](TrainConfig& c) { c.training.chunk_rows = 5; }},
  };
  return ways;
}

Trained trained(const Way& way, const TrainConfig& config) {
  if (way.ranks == 1) return train_single(config);
  return train_threads_by(*scheme_of(config), way.ranks, config).front();
}

/// The line that ends the run; empty if nothing does.
std::string corruption(const Way& way, const TrainConfig& config) {
  try {
    trained(way, config);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kCorrupted) << error.what();
    return error.what();
  }
  return "";
}

StepSpec spec_on(const Way& way, const TrainConfig& config, int rank) {
  return way.ranks == 1 ? spec_of(config, DeviceKind::kCpu, nullptr)
                        : spec_of_rank(config, DeviceKind::kCpu, nullptr, rank, way.ranks);
}

/// A low bit of the last word that a node of step 2 writes.
std::optional<Flip> flip_after(const Program& program, NodeId node, int rank) {
  for (const auto& [tensor, writes] : accesses_of(program.node(node).op)) {
    const std::int64_t words = tensor.end_bytes() / 4;
    if (!writes || words == 0 || words * 4 <= tensor.offset_bytes) continue;
    return Flip{.buffer = program.buffers()[tensor.buffer].name,
                .word = words - 1,
                .bit = 3,
                .node = node,
                .step = 2,
                .rank = rank};
  }
  return std::nullopt;
}

TEST(Verification, ChangesNothing) {
  for (const auto* const ways : {&ways_of_one(), &ways_of_ranks()}) {
    for (const Way& way : *ways) {
      SCOPED_TRACE(way.name);
      TrainConfig config = config_with(way);
      const Trained plain = trained(way, config);
      for (const int every : {1, 2}) {
        config.output.verify_every = every;
        EXPECT_EQ(corruption(way, config), "") << "every " << every;
        if (HasFailure()) return;
        EXPECT_EQ(trained(way, config), plain);
      }
    }
  }
}

// Nothing has to be refused for them.
TEST(Verification, FindsThatProductsOfLibrariesRepeat) {
  for (const Way& way : ways_of_libraries()) {
    TrainConfig config = config_with(way);
    config.output.verify_every = 1;
    EXPECT_EQ(corruption(way, config), "") << way.name;
  }
}

/// Every node of a step.
TEST(Verification, NamesTheOpWhoseOutputHasAFlippedBit) {
  for (const Way& way : ways_of_one()) {
    SCOPED_TRACE(way.name);
    TrainConfig config = config_with(way);
    config.output.verify_every = 3;
    const StepPrograms programs(spec_on(way, config, 0));
    const Program& program = programs.train().program;
    for (NodeId id = 0; id < program.size(); ++id) {
      config.injected.flip = flip_after(program, id, 0);
      if (!config.injected.flip) continue;
      const Node& node = program.node(id);
      const std::string line = corruption(way, config);
      EXPECT_THAT(line,
                  StartsWith(fmt::format("step 2: {} {}", name_of(node.phase), label_of(node.op))))
          << text_of(node.op, {});
      EXPECT_THAT(line, HasSubstr(" gave other bits when it ran again"));
      if (!node.block.empty()) EXPECT_THAT(line, HasSubstr(" of " + node.block));
    }
  }
}

TEST(Verification, NamesTheRank) {
  for (const Way& way : ways_of_ranks()) {
    SCOPED_TRACE(way.name);
    TrainConfig config = config_with(way);
    config.output.verify_every = 3;
    const int rank = way.ranks - 1;
    const auto scheme = scheme_of(config);
    const StepPrograms programs(spec_on(way, config, rank), scheme.get());
    const Program& program = programs.of({.number = 2, .is_last = true}, true).program;
    for (NodeId id = 0; id < program.size(); id += 5) {
      const Node& node = program.node(id);
      if (!std::holds_alternative<DeviceOp>(node.op)) continue;
      config.injected.flip = flip_after(program, id, rank);
      if (!config.injected.flip) continue;
      EXPECT_THAT(corruption(way, config),
                  StartsWith(fmt::format("step 2, rank {}: {} {}", rank, name_of(node.phase),
                                         label_of(node.op))));
    }
  }
}

TEST(Verification, NamesTheMicroStep) {
  const Way way = {"accumulation", 1, [](TrainConfig& c) { c.training.accumulate = 3; }};
  TrainConfig config = config_with(way);
  config.output.verify_every = 1;
  const StepPrograms programs(spec_on(way, config, 0));
  const Program& program = programs.train().program;
  int losses = 0;
  for (NodeId id = 0; id < program.size(); ++id) {
    if (label_of(program.node(id).op) != "mse_loss") continue;
    config.injected.flip = flip_after(program, id, 0);
    EXPECT_THAT(corruption(way, config), HasSubstr(fmt::format(" in micro-step {} ", losses)));
    ++losses;
  }
  EXPECT_EQ(losses, 3);
}

TEST(Verification, FindsAFaultInTheStateByTheOtherRanks) {
  for (const auto& [ranks, what] :
       {std::pair(2, "the bits of net.0.weight on ranks 0, 1 are not"),
        std::pair(3, "the bits of net.0.weight on rank 1 are not those of the others")}) {
    const Way way = {"ddp", ranks};
    TrainConfig config = config_with(way);
    config.output.verify_every = 2;
    const StepPrograms programs(spec_on(way, config, 1));
    const Parameters& parameters = programs.parameter_list();
    const Tensor weight = parameters.in(programs.parameters(), *parameters.find("net.0.weight"));
    config.injected.flip = Flip{.buffer = programs.buffers()[weight.buffer].name,
                                .word = weight.offset_bytes / 4,
                                .bit = 2,
                                .step = 0,
                                .rank = 1};
    EXPECT_THAT(corruption(way, config), StartsWith(fmt::format("step 1: {}", what)));
  }
}

TEST(Verification, FindsAFaultInAMoment) {
  const Way way = {"ddp", 3};
  TrainConfig config = config_with(way);
  config.output.verify_every = 3;
  const StepPrograms programs(spec_on(way, config, 0));
  const BufferId moment = programs.optimizer_state().front();
  config.injected.flip =
      Flip{.buffer = programs.buffers()[moment].name, .word = 0, .bit = 20, .step = 1, .rank = 2};
  EXPECT_THAT(corruption(way, config), HasSubstr(" on rank 2 are not those of the others"));
}

// Also where no other rank has it.
TEST(Verification, OfEveryStepFindsAFaultInAnyStateBetweenThem) {
  for (const auto* const ways : {&ways_of_one(), &ways_of_ranks()}) {
    for (const Way& way : *ways) {
      TrainConfig config = config_with(way);
      config.output.verify_every = 1;
      const int rank = way.ranks - 1;
      const auto scheme = scheme_of(config);
      const StepPrograms programs(spec_on(way, config, rank), scheme.get());
      const std::vector<Tensor>& state = programs.verified_state();
      ASSERT_FALSE(state.empty());
      for (const Tensor& tensor : {state.front(), state.back()}) {
        const std::string& name = programs.buffers()[tensor.buffer].name;
        config.injected.flip = Flip{
            .buffer = name, .word = tensor.offset_bytes / 4, .bit = 1, .step = 2, .rank = rank};
        const std::string where = way.ranks == 1 ? "" : fmt::format(", rank {}", rank);
        EXPECT_THAT(corruption(way, config),
                    StartsWith(fmt::format(
                        "step 2{}: the buffer {} has changed since the step before", where, name)))
            << way.name;
      }
    }
  }
}

// Only steps in between are not looked at.
TEST(Verification, FindsNothingWhereAnotherStepIsVerified) {
  const Way way{"one"};
  TrainConfig config = config_with(way);
  config.output.verify_every = 2;
  const StepPrograms programs(spec_on(way, config, 0));
  config.injected.flip = flip_after(programs.train().program, 5, 0);
  EXPECT_EQ(corruption(way, config), "");
}

TEST(Verification, OfSeveralDevicesNamesTheDevice) {
  TrainConfig config = config_with({"stages"});
  config.parallel = {.scheme = SchemeKind::kDataParallel, .pipeline = 2, .micro_batches = 2};
  config.output.verify_every = 1;
  const auto open = [](const DeviceConfig&, int index) {
    return make_cpu_device({.index = index, .threads = 1});
  };
  const SpreadRun plain = train_pipeline(config, open);
  config.output.verify_every.reset();
  EXPECT_EQ(plain, train_pipeline(config, open));
}

TEST(StateOfSteps, IsWhatAStepChangesForTheNextOne) {
  TrainConfig config = config_with({"one"});
  config.output.verify_every = 1;
  const StepPrograms programs(spec_of(config, DeviceKind::kCpu, nullptr));
  std::set<std::string> names;
  for (const Tensor& tensor : programs.verified_state()) {
    names.insert(programs.buffers()[tensor.buffer].name);
  }
  EXPECT_THAT(names, ElementsAre("exp_avg", "exp_avg_sq", "generator", "parameters"));
}

}  // namespace
}  // namespace barestep
