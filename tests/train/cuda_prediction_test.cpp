// Complete training runs on the CPU device with a GPU's random stream, compared with the losses
// predicted for PyTorch with device="cuda". The golden files cuda_predicted_* were computed, not
// measured, by an independent model whose Adam rounds like PyTorch's CUDA kernels.
#include <nlohmann/json.hpp>

#include "support/golden.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

using nlohmann::json;

class PredictedForCuda : public testing::TestWithParam<const char*> {};

TEST_P(PredictedForCuda, LossesLieWithinAMillionth) {
  const json golden = json::parse(std::ifstream(golden_path(GetParam())));
  TrainConfig config;
  config.model.dim = golden.at("dim");
  config.model.depth = golden.at("depth");
  config.data.batch_size = golden.at("batch");
  config.training.seed = golden.at("seed");
  config.training.steps = static_cast<std::int64_t>(golden.at("losses").size());
  config.device.threads = 2;
  TrainerHarness run(config, Generator::kTorchCuda);
  const Tensor x = run.programs->train().tensors.x;
  run.after_step = [&](const StepReport& report) {
    const double expected = golden.at("losses")[static_cast<std::size_t>(report.step)];
    EXPECT_LE(std::abs(report.loss - expected), 1e-6 * expected) << "at step " << report.step;
    if (report.step != 0) return;
    const float* first = run.trainer->runner().addresses(0).at(x);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(first[i], golden.at("x_first8")[i], 5e-6);
  };
  run.run();
  EXPECT_EQ(run.steps.size(), golden.at("losses").size());
}

INSTANTIATE_TEST_SUITE_P(Golden, PredictedForCuda,
                         testing::Values("cuda_predicted_d256_l3_b16_s0",
                                         "cuda_predicted_d256_l3_b16_s1",
                                         "cuda_predicted_d1024_l2_b64_s0",
                                         "cuda_predicted_d1024_l2_b64_s1"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace barestep
