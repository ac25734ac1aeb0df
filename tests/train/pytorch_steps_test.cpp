// Every number of every step compared with PyTorch's golden files. The program runs with
// OPENBLAS_CORETYPE set to the kernels with which they were made (tests/train/CMakeLists.txt).

#include "kernels/cpu/product.h"
#include "support/golden.h"
#include "support/layers.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

/// The requirement of a comparison of two values.
struct Tolerance {
  double relative = 0;
  double absolute = 0;
};

void expect_values(std::span<const float> values, const std::vector<float>& expected,
                   const Tolerance& tolerance, const std::string& what) {
  ASSERT_EQ(values.size(), expected.size()) << what;
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_LE(std::abs(static_cast<double>(values[i]) - expected[i]),
              tolerance.absolute + tolerance.relative * std::abs(expected[i]))
        << what << " at " << i << ": " << values[i] << " instead of " << expected[i];
  }
}

/// All tensors of a flat buffer.
void expect_flat(FlatWeights flat, const ModelSpec& spec, const GoldenValues& expected,
                 const Tolerance& tolerance, const std::string& what) {
  for (int layer = 0; layer < spec.layers(); ++layer) {
    const std::string weight = state_dict_name(spec, layer, "weight");
    const std::string bias = state_dict_name(spec, layer, "bias");
    expect_values(weight_in(flat, spec, layer), expected.at(weight), tolerance,
                  what + " of " + weight);
    expect_values(bias_in(flat, spec, layer), expected.at(bias), tolerance, what + " of " + bias);
  }
}

class TinyRun : public testing::TestWithParam<const char*> {};

TEST_P(TinyRun, HasEveryBitOfEveryStep) {
  if (make_cblas_product() == nullptr) GTEST_SKIP() << "this build has no OpenBLAS";
  const Golden golden = load_golden(GetParam());
  ASSERT_EQ(golden.each_step.size(), golden.losses.size());
  for (const bool fusion : {true, false}) {
    SCOPED_TRACE(fusion ? "fusion on" : "fusion off");
    TrainConfig config = config_of(golden);
    config.device.threads = 1;
    config.device.gemm = GemmProvider::kCblas;
    config.device.fusion = fusion;
    TrainerHarness run(config);
    const ModelSpec& spec = run.programs->spec().model;
    Trainer& trainer = *run.trainer;
    expect_flat(trainer.weights(), spec, golden.initial, {}, "initial value");
    run.after_step = [&](const StepReport& report) {
      SCOPED_TRACE("step " + std::to_string(report.step));
      const GoldenStep& step = golden.each_step[static_cast<std::size_t>(report.step)];
      EXPECT_EQ(report.loss, golden.losses[static_cast<std::size_t>(report.step)]);
      expect_flat(trainer.download(run.programs->gradients()), spec, step.gradients, {},
                  "gradient");
      expect_flat(trainer.weights(), spec, step.parameters, {}, "value");
      const std::vector<BufferId>& moments = run.programs->optimizer_state();
      expect_flat(trainer.download(moments.at(0)), spec, step.m, {}, "m");
      expect_flat(trainer.download(moments.at(1)), spec, step.v, {}, "v");
    };
    run.run();
    EXPECT_EQ(run.steps.size(), golden.each_step.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, TinyRun,
                         testing::Values("tiny_d8_l2_b4_s0", "tiny_d8_l2_b4_s0_nolastrelu",
                                         "tiny_d8_l2_b4_s1", "tiny_d8_l2_b4_s1_nolastrelu"),
                         [](const auto& run) { return std::string(run.param); });

/// Passes a golden file's batches to a program that reads files.
class GoldenInput final : public StepInput {
 public:
  GoldenInput(const Golden& golden, const StepTensors& tensors)
      : golden_(golden), tensors_(tensors) {}

  void fill(std::int64_t step, const Program& /*program*/, const Addresses& addresses) override {
    const GoldenStep& values = golden_.each_step.at(static_cast<std::size_t>(step));
    std::ranges::copy(values.x, addresses.at(*tensors_.x_host));
    std::ranges::transform(values.labels, addresses.at<std::int32_t>(*tensors_.y_host),
                           [](std::int64_t label) { return static_cast<std::int32_t>(label); });
    // PyTorch's Adam: the step size divided by the first correction, the root of the second.
    const double t = static_cast<double>(step) + 1;
    float* scalars = addresses.at(*tensors_.scalars_host);
    scalars[0] = static_cast<float>(-golden_.lr / (1 - std::pow(0.9, t)));
    scalars[1] = static_cast<float>(std::sqrt(1 - std::pow(0.999, t)));
  }

 private:
  const Golden& golden_;
  const StepTensors& tensors_;
};

TEST(CrossEntropyRun, HasPyTorchsLossesGradientsAndParameters) {
  if (make_cblas_product() == nullptr) GTEST_SKIP() << "this build has no OpenBLAS";
  const Golden golden = load_golden("ce_tiny");
  const auto steps = static_cast<std::int64_t>(golden.each_step.size());
  const StepPrograms programs(
      {.model = {.widths = golden.layers,
                 .last_relu = golden.last_relu,
                 .loss = LossKind::kCrossEntropy},
       .input = {.data = DataKind::kIdx, .train_rows = golden.batch * steps},
       .update = {.zero_grad = golden.zero_grad},
       .batch_size = golden.batch});
  const StepProgram& train = programs.train();
  expect_ordered(train.program);
  const ModelSpec& spec = programs.spec().model;
  TorchGenerator generator(golden.seed);
  const FlatWeights initial = initial_weights(spec, generator);
  expect_flat(initial, spec, golden.initial, {}, "initial value");

  const auto device = make_cpu_device({.threads = 1, .gemm = GemmProvider::kCblas});
  const MemoryPlan plan(programs.buffers());
  Runner runner(std::array<Device*, 1>{device.get()}, nullptr, programs.buffers(), plan, {});
  runner.add(train.program);
  const auto numbers = [&](BufferId buffer) {
    const Tensor flat = programs.parameter_list().flat(buffer);
    return std::span(runner.addresses(0).at(flat), static_cast<std::size_t>(flat.size()));
  };
  const auto values = [&](BufferId buffer) {
    const auto all = numbers(buffer);
    return FlatWeights(all.begin(), all.end());
  };
  std::ranges::copy(initial, numbers(programs.parameters()).begin());
  const std::vector<BufferId>& moments = programs.optimizer_state();
  for (const BufferId buffer : {programs.gradients(), moments.at(0), moments.at(1)}) {
    std::ranges::fill(numbers(buffer), 0.0F);
  }

  constexpr Tolerance kClose{.relative = 1e-6, .absolute = 1e-8};
  GoldenInput input(golden, train.tensors);
  for (std::int64_t i = 0; i < steps; ++i) {
    SCOPED_TRACE("step " + std::to_string(i));
    runner.step(train.program, i + 1 < steps ? &train.program : nullptr, input);
    const GoldenStep& step = golden.each_step[static_cast<std::size_t>(i)];
    const double loss = *runner.addresses(i).at(train.tensors.loss_host);
    const double expected = golden.losses[static_cast<std::size_t>(i)];
    EXPECT_NEAR(loss, expected, 1e-6 * expected);
    expect_flat(values(programs.gradients()), spec, step.gradients, kClose, "gradient");
    expect_flat(values(programs.parameters()), spec, step.parameters, kClose, "value");
    expect_flat(values(moments.at(0)), spec, step.m, kClose, "m");
    expect_flat(values(moments.at(1)), spec, step.v, kClose, "v");
  }
}

}  // namespace
}  // namespace barestep
