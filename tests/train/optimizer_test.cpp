// The optimizer's memory, its op, and the numbers that change with each step.
#include "train/optimizer.h"

#include "model/model.h"
#include "support/testing.h"

namespace barestep {
namespace {

std::vector<float> scalars(const OptimizerConfig& config, std::int64_t t, int world = 1) {
  const OptimizerStep step = step_of(config);
  std::vector<float> numbers(static_cast<std::size_t>(scalars_of(step)));
  write_scalars(step, t, learning_rate(config, t, world, 100), numbers);
  return numbers;
}

/// The tensors that an optimizer allocates in addition to parameters and gradients.
std::vector<std::string> state_of(const OptimizerConfig& config) {
  Buffers buffers;
  const Parameters parameters = parameters_of({.widths = {4, 4}});
  const OptimizerState state(buffers, config, parameters);
  std::vector<std::string> names;
  for (const Buffer& buffer : buffers.all()) {
    EXPECT_EQ(buffer.category, Category::kOptimizer);
    EXPECT_EQ(buffer.bytes, parameters.bytes());
    names.push_back(buffer.name);
  }
  return names;
}

TEST(OptimizerState, IsWhatTheOptimizerNeedsAndNoMore) {
  using testing::ElementsAre;
  using enum OptimizerKind;
  EXPECT_THAT(state_of({.kind = kAdam}), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(state_of({.kind = kAdamW}), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(state_of({.kind = kAdam, .amsgrad = true}),
              ElementsAre("exp_avg", "exp_avg_sq", "max_exp_avg_sq"));
  EXPECT_THAT(state_of({.kind = kSgd}), ElementsAre());
  EXPECT_THAT(state_of({.kind = kSgd, .momentum = 0.9}), ElementsAre("momentum_buffer"));
  EXPECT_THAT(state_of({.kind = kRmsProp}), ElementsAre("square_avg"));
  EXPECT_THAT(state_of({.kind = kRmsProp, .momentum = 0.9}),
              ElementsAre("square_avg", "momentum_buffer"));
  EXPECT_THAT(state_of({.kind = kAdagrad}), ElementsAre("sum"));
  EXPECT_THAT(state_of({.kind = kLion}), ElementsAre("exp_avg"));
}

TEST(LearningRate, GrowsByEqualAmountsToItsValue) {
  const OptimizerConfig config{.lr = 0.8, .lr_warmup = 4};
  const double expected[] = {0.2, 0.4, 0.6, 0.8, 0.8, 0.8};
  for (std::int64_t t = 1; t <= 6; ++t) {
    EXPECT_DOUBLE_EQ(learning_rate(config, t, 1, 100), expected[t - 1]) << t;
  }
}

TEST(LearningRate, IsWholeFromTheFirstStepWithoutWarmup) {
  EXPECT_EQ(learning_rate({.lr = 0.3}, 1, 1, 100), 0.3);
  EXPECT_EQ(learning_rate({.lr = 0.3, .lr_warmup = 1}, 1, 1, 100), 0.3);
}

TEST(LearningRate, ScalesWithTheNumberOfRanksIfAsked) {
  EXPECT_EQ(learning_rate({.lr = 0.25}, 1, 8, 100), 0.25);
  const OptimizerConfig linear{.lr = 0.25, .lr_warmup = 2, .lr_scale = LrScale::kLinear};
  EXPECT_EQ(learning_rate(linear, 1, 8, 100), 1);
  EXPECT_EQ(learning_rate(linear, 2, 8, 100), 2);
  EXPECT_EQ(learning_rate(linear, 2, 1, 100), 0.25);
}

/// Ten steps, three of them warm-up.
std::vector<double> ten_rates(OptimizerConfig config) {
  config.lr = 0.5;
  config.lr_warmup = 3;
  std::vector<double> rates;
  for (std::int64_t t = 1; t <= 10; ++t) rates.push_back(learning_rate(config, t, 1, 10));
  return rates;
}

// torch.optim.lr_scheduler.SequentialLR of warm-up and the schedule, with milestone 3, stepped in
// each step.
TEST(LearningRate, GoesDownAfterWarmupAsTheScheduleSays) {
  const std::vector<double> warmup = {0.5 / 3, 1.0 / 3, 0.5};
  const auto expect = [&](const OptimizerConfig& config, std::vector<double> after) {
    const std::vector<double> rates = ten_rates(config);
    after.insert(after.begin(), warmup.begin(), warmup.end());
    for (std::size_t i = 0; i < 10; ++i) EXPECT_NEAR(rates[i], after[i], 1e-12) << i;
  };
  using enum LrSchedule;
  expect({}, {0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5});
  expect({.lr_schedule = kLinear, .lr_min = 0.15}, {0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2});
  expect({.lr_schedule = kStep, .lr_step = 3}, {0.5, 0.5, 0.5, 0.05, 0.05, 0.05, 0.005});
  expect({.lr_schedule = kStep, .lr_step = 2, .lr_gamma = 0.5},
         {0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.0625});
  expect({.lr_schedule = kCosine, .lr_min = 0.1},
         {0.5, 0.48019377358048385, 0.4246979603717467, 0.34450418679126287, 0.25549581320873716,
          0.1753020396282533, 0.11980622641951617});
}

TEST(LearningRate, IsThereForRunsThatAreAllWarmup) {
  const OptimizerConfig config{.lr = 0.5, .lr_warmup = 20, .lr_schedule = LrSchedule::kCosine};
  EXPECT_EQ(learning_rate(config, 10, 1, 10), 0.25);
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
  EXPECT_THAT(scalars({.kind = OptimizerKind::kRmsProp}, 3), ElementsAre(-0.01F));
  EXPECT_THAT(scalars({.kind = OptimizerKind::kAdagrad, .lr = 0.5}, 3), ElementsAre(-0.5F));
  const OptimizerConfig lion{.kind = OptimizerKind::kLion, .lr = 0.5, .weight_decay = 0.25};
  EXPECT_THAT(scalars(lion, 3), ElementsAre(-0.5F, 0.875F));
}

TEST(OptimizerNumbers, ArePyTorchsUnlessGiven) {
  EXPECT_EQ(numbers_of({.kind = OptimizerKind::kAdagrad}).eps, 1e-10);
  EXPECT_EQ(numbers_of({.kind = OptimizerKind::kAdagrad}).lr, 0.01);
  EXPECT_EQ(numbers_of({.kind = OptimizerKind::kAdam}).lr, 0.001);
  EXPECT_EQ(numbers_of({.kind = OptimizerKind::kLion}).beta2, 0.99);
  EXPECT_EQ(numbers_of({.kind = OptimizerKind::kLion, .beta2 = 0.5}).beta2, 0.5);

  EXPECT_EQ(numbers_of({.kind = OptimizerKind::kAdamW}).weight_decay, 0.01);
  EXPECT_EQ(numbers_of({.kind = OptimizerKind::kAdam}).weight_decay, 0);
  EXPECT_EQ(numbers_of({.kind = OptimizerKind::kSgd}).weight_decay, 0);
  EXPECT_EQ(numbers_of({.kind = OptimizerKind::kAdamW, .weight_decay = 0.5}).weight_decay, 0.5);
}

}  // namespace
}  // namespace barestep
