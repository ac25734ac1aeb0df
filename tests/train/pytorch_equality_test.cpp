// Complete training runs compared with PyTorch's golden files. The program runs with
// OPENBLAS_CORETYPE set to the kernels with which the golden files were made
// (tests/train/CMakeLists.txt).

#include "kernels/cpu/product.h"
#include "support/golden.h"
#include "support/layers.h"
#include "support/near.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

/// The runs on random data.
std::vector<std::string> random_data_runs() {
  std::vector<std::string> names;
  for (const std::string& name : golden_runs()) {
    if (!name.starts_with("ce_")) names.push_back(name);
  }
  return names;
}

void expect_parameters(Trainer& trainer, const StepPrograms& programs, const Golden& golden,
                       std::uint64_t GoldenParameter::*hash) {
  const ModelSpec& spec = programs.spec().model;
  FlatWeights weights = trainer.weights();
  for (int layer = 0; layer < spec.layers(); ++layer) {
    const std::string weight = state_dict_name(spec, layer, "weight");
    const std::string bias = state_dict_name(spec, layer, "bias");
    EXPECT_EQ(xxh3(weight_in(weights, spec, layer)), golden.parameter(weight).*hash) << weight;
    EXPECT_EQ(xxh3(bias_in(weights, spec, layer)), golden.parameter(bias).*hash) << bias;
  }
}

class EqualToPyTorch : public testing::TestWithParam<std::string> {
 protected:
  void expect_golden_bits(Denormals denormals) const {
    TrainConfig config = config_of(golden_);
    config.device.threads = 1;
    config.device.denormals = denormals;
    config.device.gemm = GemmProvider::kCblas;
    TrainerHarness run(config);
    expect_parameters(*run.trainer, *run.programs, golden_, &GoldenParameter::initial_xxh3);

    const StepTensors& tensors = run.programs->train().tensors;
    const auto numbers = [&](const Tensor& tensor, std::int64_t step) {
      return std::span<const float>(run.trainer->runner().addresses(step).at(tensor),
                                    static_cast<std::size_t>(tensor.size()));
    };
    run.after_step = [&](const StepReport& report) {
      const auto i = static_cast<std::size_t>(report.step);
      EXPECT_EQ(xxh3(numbers(tensors.x, report.step)), golden_.x_xxh3[i]) << "x at step " << i;
      EXPECT_EQ(xxh3(numbers(tensors.y, report.step)), golden_.y_xxh3[i]) << "y at step " << i;
      EXPECT_EQ(report.loss, golden_.losses[i]) << "loss at step " << i;
    };
    run.run();
    EXPECT_EQ(run.steps.size(), golden_.losses.size());
    expect_parameters(*run.trainer, *run.programs, golden_, &GoldenParameter::final_xxh3);
  }

  void expect_near_golden(GemmProvider gemm) const {
    TrainConfig config = config_of(golden_);
    config.device.threads = 2;
    config.device.gemm = gemm;
    TrainerHarness run(config);
    run.run();
    expect_within(run.losses(), golden_.losses, 5e-7);
  }

  const Golden golden_ = load_golden(GetParam());
};

/// Denormal numbers make no difference, since there are none.
TEST_P(EqualToPyTorch, BitForBitOnOneThreadOfTheSameBlas) {
  if (make_cblas_product() == nullptr) GTEST_SKIP() << "this build has no OpenBLAS";
  const char* core = std::getenv("OPENBLAS_CORETYPE");
  ASSERT_TRUE(core != nullptr && golden_.blas_core == core)
      << "run with OPENBLAS_CORETYPE=" << golden_.blas_core;
  for (const Denormals denormals : kValuesOf<Denormals>) {
    SCOPED_TRACE(name_of(denormals));
    expect_golden_bits(denormals);
  }
}

TEST_P(EqualToPyTorch, WithinFiveTenMillionthsOnTwoThreadsOfAnyProducts) {
  expect_near_golden(GemmProvider::kOwn);
  if (make_cblas_product() != nullptr) expect_near_golden(GemmProvider::kCblas);
  if (make_onednn_product() != nullptr) expect_near_golden(GemmProvider::kOneDnn);
}

INSTANTIATE_TEST_SUITE_P(Golden, EqualToPyTorch, testing::ValuesIn(random_data_runs()),
                         [](const auto& run) { return run.param; });

}  // namespace
}  // namespace barestep
