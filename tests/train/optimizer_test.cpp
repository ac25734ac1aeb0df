// The optimizer's memory, its op, and the numbers that change from step to step.
#include "train/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace barestep {
namespace {

std::vector<float> scalars(const OptimizerConfig& config, std::int64_t t, int world = 1) {
  std::vector<float> numbers(static_cast<std::size_t>(scalars_of(config)));
  write_scalars(config, t, world, numbers);
  return numbers;
}

/// What an optimizer allocates beside parameters and gradients.
std::vector<std::string> state_of(const OptimizerConfig& config) {
  Buffers buffers;
  const ParameterLayout layout({4, 4});
  const OptimizerState state(buffers, config, layout);
  std::vector<std::string> names;
  for (const Buffer& buffer : buffers.all()) {
    EXPECT_EQ(buffer.category, Category::kOptimizer);
    EXPECT_EQ(buffer.bytes, layout.bytes());
    names.push_back(buffer.name);
  }
  return names;
}

TEST(OptimizerState, IsWhatTheOptimizerNeedsAndNoMore) {
  using testing::ElementsAre;
  EXPECT_THAT(state_of({.kind = OptimizerKind::kAdam}), ElementsAre("moments1", "moments2"));
  EXPECT_THAT(state_of({.kind = OptimizerKind::kAdamW}), ElementsAre("moments1", "moments2"));
  EXPECT_THAT(state_of({.kind = OptimizerKind::kSgd}), ElementsAre());
  EXPECT_THAT(state_of({.kind = OptimizerKind::kSgd, .momentum = 0.9}), ElementsAre("velocities"));
}

TEST(LearningRate, GrowsByEqualAmountsToItsValue) {
  const OptimizerConfig config{.lr = 0.8, .lr_warmup = 4};
  const double expected[] = {0.2, 0.4, 0.6, 0.8, 0.8, 0.8};
  for (std::int64_t t = 1; t <= 6; ++t) {
    EXPECT_DOUBLE_EQ(learning_rate(config, t, 1), expected[t - 1]) << t;
  }
}

TEST(LearningRate, IsWholeFromTheFirstStepWithoutWarmup) {
  EXPECT_EQ(learning_rate({.lr = 0.3}, 1, 1), 0.3);
  EXPECT_EQ(learning_rate({.lr = 0.3, .lr_warmup = 1}, 1, 1), 0.3);
}

TEST(LearningRate, ScalesWithTheNumberOfRanksIfAsked) {
  EXPECT_EQ(learning_rate({.lr = 0.25}, 1, 8), 0.25);
  const OptimizerConfig linear{.lr = 0.25, .lr_warmup = 2, .lr_scale = LrScale::kLinear};
  EXPECT_EQ(learning_rate(linear, 1, 8), 1);
  EXPECT_EQ(learning_rate(linear, 2, 8), 2);
  EXPECT_EQ(learning_rate(linear, 2, 1), 0.25);
}

TEST(WriteScalars, GivesEachOptimizerItsNumbers) {
  using testing::ElementsAre;
  using testing::FloatEq;
  const auto root = [](double beta2_power) {
    return FloatEq(static_cast<float>(std::sqrt(1 - beta2_power)));
  };
  EXPECT_THAT(scalars({.lr = 0.5}, 2), ElementsAre(FloatEq(-0.5F / 0.19F), root(0.999 * 0.999)));
  const OptimizerConfig adamw{.kind = OptimizerKind::kAdamW, .lr = 0.5, .weight_decay = 0.25};
  EXPECT_THAT(scalars(adamw, 1), ElementsAre(FloatEq(-5), root(0.999), 0.875F));
  const OptimizerConfig sgd{
      .kind = OptimizerKind::kSgd, .lr = 0.5, .lr_warmup = 2, .lr_scale = LrScale::kLinear};
  EXPECT_THAT(scalars(sgd, 1, 4), ElementsAre(-1.0F));
}

TEST(WeightDecay, IsPyTorchsUnlessGiven) {
  EXPECT_EQ(weight_decay_of({.kind = OptimizerKind::kAdamW}), 0.01);
  EXPECT_EQ(weight_decay_of({.kind = OptimizerKind::kAdam}), 0);
  EXPECT_EQ(weight_decay_of({.kind = OptimizerKind::kSgd}), 0);
  EXPECT_EQ(weight_decay_of({.kind = OptimizerKind::kAdamW, .weight_decay = 0.5}), 0.5);
}

}  // namespace
}  // namespace barestep
