// Adam inside the weight gradients compared with Adam after them, and clipping compared with
// PyTorch's.

#include "core/plan.h"
#include "core/program.h"
#include "kernels/cpu/product.h"
#include "support/expect_error.h"
#include "support/golden.h"
#include "support/layers.h"
#include "support/near.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

/// Layers that are not multiples of a tile, and a batch that is a multiple of nothing.
TrainConfig update_config(bool fused) {
  TrainConfig config;
  config.model.layers = {70, 300, 133, 10};
  config.data.batch_size = 13;
  config.training.steps = 8;
  config.training.update = fused ? Update::kFused : Update::kSeparate;
  config.device.threads = 2;
  return config;
}

/// The weights after each step are those of the separate update, within `tolerance` per step.
void expect_near_separate(const std::function<void(TrainConfig&)>& adjust,
                          double tolerance = 1e-6) {
  std::vector<FlatWeights> weights[2];
  for (const bool fused : {false, true}) {
    TrainConfig config = update_config(fused);
    adjust(config);
    TrainerHarness run(config);
    run.after_step = [&](const StepReport&) {
      weights[fused ? 1 : 0].push_back(run.trainer->weights());
    };
    run.run();
  }
  ASSERT_EQ(weights[0].size(), weights[1].size());
  for (std::size_t step = 0; step < weights[0].size(); ++step) {
    EXPECT_LE(relative_distance(weights[1][step], weights[0][step]),
              tolerance * static_cast<double>(step + 1))
        << "step " << step;
  }
}

TEST(FusedUpdate, HasTheBitsOfTheSeparateOneWithOurProductsAndPlainLoops) {
  for (const GemmProvider gemm : {GemmProvider::kOwn, GemmProvider::kReference}) {
    for (const Instructions most : kValuesOf<Instructions>) {
      expect_near_separate(
          [&](TrainConfig& config) {
            config.device.gemm = gemm;
            config.device.instructions = most;
          },
          0);
    }
  }
}

TEST(FusedUpdate, HasTheBitsOfTheSeparateOneWithWeightDecayInBf16AndInAGraph) {
  for (const OptimizerKind kind : {OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    expect_near_separate(
        [&](TrainConfig& config) {
          config.optimizer.kind = kind;
          config.optimizer.weight_decay = 0.02;
          config.optimizer.lr_warmup = 3;
        },
        0);
    // With plain loops, which sum the terms of each number in order.
    expect_near_separate(
        [&](TrainConfig& config) {
          config.optimizer.kind = kind;
          config.device.precision = Precision::kBf16;
          config.device.gemm = GemmProvider::kReference;
        },
        0);
  }
  expect_near_separate([](TrainConfig& config) { config.device.graph = true; }, 0);
}

// OpenBLAS's Haswell kernels sum the edges of a tile in a different order. The separate update adds
// the sums of micro-steps; the fused update has one sum over all rows. Norms differ in their last
// bits.
TEST(FusedUpdate, IsNearTheSeparateOneWithLibrariesMicroStepsAndClipping) {
  for (const GemmProvider gemm : {GemmProvider::kOneDnn, GemmProvider::kCblas}) {
    if (gemm == GemmProvider::kOneDnn && make_onednn_product() == nullptr) continue;
    if (gemm == GemmProvider::kCblas && make_cblas_product() == nullptr) continue;
    SCOPED_TRACE(static_cast<int>(gemm));
    expect_near_separate([&](TrainConfig& config) { config.device.gemm = gemm; });
  }
  for (const std::int64_t accumulate : {1, 2, 3, 5}) {
    const auto parts = [&](TrainConfig& config) { config.training.accumulate = accumulate; };
    expect_near_separate(parts);
    expect_near_separate([&](TrainConfig& config) {
      parts(config);
      config.training.clip_norm = 0.05;
    });
  }
}

StepSpec spec_with(bool fused, std::int64_t accumulate = 1) {
  TrainConfig config;
  config.model.dim = 256;
  config.model.depth = 6;
  config.training.update = fused ? Update::kFused : Update::kSeparate;
  config.training.accumulate = accumulate;
  return spec_of(config, DeviceKind::kCpu, nullptr);
}

TEST(FusedUpdate, PlansNoGradients) {
  const StepPrograms separate(spec_with(false));
  const StepPrograms fused(spec_with(true));
  const MemoryPlan before(separate.buffers());
  const MemoryPlan after(fused.buffers());
  const std::int64_t gradients = separate.parameter_list().bytes();
  EXPECT_EQ(before.category_bytes(0, Category::kGradients), gradients);
  EXPECT_EQ(after.category_bytes(0, Category::kGradients), 0);
  // In return it keeps the gradients of all outputs, which otherwise share two buffers.
  const std::int64_t kept = after.category_bytes(0, Category::kActivations) -
                            before.category_bytes(0, Category::kActivations);
  EXPECT_GT(kept, 0);
  EXPECT_EQ(after.device_bytes(0), before.device_bytes(0) - gradients + kept);
}

TEST(FusedUpdate, KeepsTheFactorsOfAllMicroSteps) {
  const StepPrograms one(spec_with(true));
  const StepPrograms three(spec_with(true, 3));
  EXPECT_EQ(MemoryPlan(three.buffers()).category_bytes(0, Category::kActivations),
            3 * MemoryPlan(one.buffers()).category_bytes(0, Category::kActivations));
}

// 4 to read a weight forward, 4 backward except in the first of 6 layers, 4 to write its gradient,
// and 28 for Adam, which reads four numbers and writes three; if fused, 24.
TEST(FusedUpdate, MovesThirtyOneInsteadOfThirtyNineBytesAParameter) {
  const auto bytes = [](bool fused) {
    const StepPrograms programs(spec_with(fused));
    return static_cast<double>(state_bytes_of(programs.train().program)) /
           static_cast<double>(programs.parameter_list().size());
  };
  EXPECT_NEAR(bytes(false), 39 + 1.0 / 3, 0.1);
  EXPECT_NEAR(bytes(true), 31 + 1.0 / 3, 0.1);
}

TEST(FusedUpdate, HasNoGradientsToLookAt) {
  const StepPrograms programs(spec_with(true));
  expect_error(ExitCode::kConfiguration,
               "--update 'fused': stores no gradients that could be read; use --update separate",
               [&] { static_cast<void>(programs.gradients()); });
}

class ClippedRun : public testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] TrainConfig config(bool fused) const {
    TrainConfig config = config_of(golden_);
    config.training.update = fused ? Update::kFused : Update::kSeparate;
    config.device.threads = 2;
    return config;
  }

  /// The factor used for clipping in the last step of `run`.
  static float factor_of(TrainerHarness& run) {
    const Program& program = run.programs->train().program;
    for (const Node& node : program.nodes()) {
      const auto* clip = std::get_if<ClipFactor>(&std::get<DeviceOp>(node.op));
      if (clip != nullptr) return *run.trainer->runner().addresses(0).at(clip->factor);
    }
    ADD_FAILURE() << "nothing is clipped";
    return 0;
  }

  const Golden golden_ = load_golden(GetParam());
};

// torch sums squares in float, so its norms may be off by this much.
TEST_P(ClippedRun, HasPyTorchsNormsAndLosses) {
  for (const bool fused : {false, true}) {
    if (fused && golden_.optimizer == "sgd") continue;
    SCOPED_TRACE(fused ? "fused" : "separate");
    TrainerHarness run(config(fused));
    int clipped = 0;
    run.after_step = [&](const StepReport& report) {
      const auto step = static_cast<std::size_t>(report.step);
      const double factor = std::min(1.0, golden_.clip_norm / (golden_.norms.at(step) + 1e-6));
      clipped += factor < 1 ? 1 : 0;
      EXPECT_NEAR(factor_of(run), factor, 1e-6) << step;
      EXPECT_NEAR(report.loss, golden_.losses[step], 1e-6 * golden_.losses[step]) << step;
      if (golden_.each_step.empty()) return;
      const ModelSpec& spec = run.programs->spec().model;
      FlatWeights weights = run.trainer->weights();
      for (int layer = 0; layer < spec.layers(); ++layer) {
        EXPECT_THAT(weight_in(weights, spec, layer),
                    testing::Pointwise(testing::FloatNear(2e-6F),
                                       golden_.each_step[step].parameters.at(
                                           state_dict_name(spec, layer, "weight"))));
      }
    };
    run.run();
    // Both kinds of steps must occur, or only half would be tested.
    EXPECT_GT(clipped, 0);
    EXPECT_LT(clipped, golden_.steps);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, ClippedRun,
                         testing::Values("clip_adam_d8_l2_b4_s0", "clip_adamw_d256_l3_b16_s0",
                                         "clip_sgd_d256_l3_b16_s0"),
                         [](const auto& run) { return std::string(run.param); });

}  // namespace
}  // namespace barestep
