// Numbers that others published, reproduced.
#include <gtest/gtest.h>

#include <numeric>

#include "support/trainer_harness.h"

namespace barestep {
namespace {

// PyTorch recipe "Shard Optimizer States with ZeroRedundancyOptimizer": 20 x Linear(2000, 2000)
// without ReLU, 20 random samples, one step of Adam with lr 0.01, seed 0. It prints
// sum(model.parameters()).sum(), in which broadcasting counts every bias 2000 times.
TEST(PublishedNumbers, TheZeroRecipesParamsSumAfterOneStep) {
  constexpr std::int64_t kWidth = 2000;
  constexpr int kLayers = 20;
  TrainConfig config;
  config.model.dim = kWidth;
  config.model.depth = kLayers;
  config.model.activation = Activation::kNone;
  config.data.batch_size = 20;
  config.training.steps = 1;
  config.training.lr = 0.01;
  TrainerHarness run(config);
  run.run();

  FlatWeights weights = run.trainer->weights();
  const ParameterLayout& layout = run.programs->spec().model.layout;
  double sum = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto weight = weight_in(weights, layout, layer);
    const auto bias = bias_in(weights, layout, layer);
    sum += std::accumulate(weight.begin(), weight.end(), 0.0);
    sum += static_cast<double>(kWidth) * std::accumulate(bias.begin(), bias.end(), 0.0);
  }
  EXPECT_NEAR(sum, -3453.6123046875, 0.1);
}

}  // namespace
}  // namespace barestep
