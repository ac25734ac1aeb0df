// Transformer blocks against torch.nn.TransformerEncoderLayer: initial values, gradients, losses.

#include <gtest/gtest.h>

#include <cmath>

#include "support/attention_golden.h"
#include "support/golden.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

using nlohmann::json;

json transformer_golden(const std::string& name) {
  return attention_golden(golden_path("x").parent_path(), name);
}

TrainConfig transformer_config(const json& golden) {
  TrainConfig config;
  config.model = {.dim = golden.at("dim"),
                  .depth = golden.at("blocks").get<std::int64_t>(),
                  .block = BlockKind::kTransformer,
                  .heads = golden.at("heads"),
                  .length = golden.at("length"),
                  .ffn = golden.at("ffn"),
                  .causal = golden.at("causal")};
  config.data.batch_size = golden.at("batch");
  config.training.steps = golden.at("steps");
  config.training.seed = golden.at("seed");
  if (golden.at("precision") == "bfloat16") config.device.precision = Precision::kBf16;
  return config;
}

void expect_losses(const TrainerHarness& run, const json& losses, double error) {
  ASSERT_EQ(run.steps.size(), losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const double expected = losses[i];
    EXPECT_NEAR(run.steps[i].loss, expected, error * expected) << "step " << i;
  }
}

struct GoldenCase {
  std::string name;
  double error;  // relative, of losses
};

class TransformerGolden : public testing::TestWithParam<GoldenCase> {};

TEST_P(TransformerGolden, HasPyTorchsLossesInBothForms) {
  const json golden = transformer_golden(GetParam().name);
  TrainConfig config = transformer_config(golden);
  TrainerHarness flash(config);
  flash.run();
  expect_losses(flash, golden.at("losses"), GetParam().error);
  config.model.attention = AttentionForm::kStandard;
  TrainerHarness standard(config);
  standard.run();
  expect_losses(standard, golden.at("losses_math_kernel"), GetParam().error);
}

// In 16 bits, leaving out any rounding point moves the losses of the tiny case by 9e-5 or more.
INSTANTIATE_TEST_SUITE_P(Transformer, TransformerGolden,
                         testing::Values(GoldenCase{"tiny_d16_h2_l4_b2_n1_s0", 5e-7},
                                         GoldenCase{"d64_h4_l16_b4_n2_s0", 5e-7},
                                         GoldenCase{"d64_h4_l16_b4_n2_s1", 5e-7},
                                         GoldenCase{"causal_d64_h4_l16_b4_n2_s0", 5e-7},
                                         GoldenCase{"causal_d64_h4_l16_b4_n2_s1", 5e-7},
                                         GoldenCase{"bf16_tiny_d16_h2_l4_b2_n1_s0", 1e-6},
                                         GoldenCase{"bf16_d64_h4_l32_b2_n2_s0", 2e-4},
                                         GoldenCase{"bf16_d64_h4_l32_b2_n2_s1", 2e-4}),
                         [](const auto& golden) { return golden.param.name; });

/// Numbers of a golden tensor; zeros at its end are left out there.
std::vector<double> golden_numbers(const json& list, std::size_t count) {
  std::vector<double> numbers = hex_numbers(list);
  numbers.resize(count);
  return numbers;
}

TEST(TransformerBlock, StartsWithPyTorchsWeightsToTheBit) {
  const json golden = transformer_golden("tiny_d16_h2_l4_b2_n1_s0");
  const TrainerHarness run(transformer_config(golden));
  FlatWeights weights = run.trainer->weights();
  const Parameters& parameters = run.programs->parameter_list();
  ASSERT_EQ(golden.at("names").size(), static_cast<std::size_t>(parameters.count()));
  for (const std::string name : golden.at("names")) {
    const std::optional<ParameterId> id = parameters.find(name);
    ASSERT_TRUE(id) << name;
    const std::span<float> actual = parameters.in(weights, *id);
    const std::vector<double> expected =
        golden_numbers(golden.at("initial").at(name), actual.size());
    EXPECT_TRUE(std::equal(actual.begin(), actual.end(), expected.begin())) << name;
  }
}

TEST(TransformerBlock, HasPyTorchsGradients) {
  const json golden = transformer_golden("tiny_d16_h2_l4_b2_n1_s0");
  for (const AttentionForm form : kValuesOf<AttentionForm>) {
    TrainConfig config = transformer_config(golden);
    config.model.attention = form;
    config.training.steps = 1;
    TrainerHarness run(config);
    const Parameters& parameters = run.programs->parameter_list();
    run.after_step = [&](const StepReport& /*report*/) {
      FlatWeights gradients = run.trainer->download(run.programs->gradients());
      for (ParameterId id = 0; id < parameters.count(); ++id) {
        const std::string& name = parameters[id].name;
        SCOPED_TRACE(name);
        const std::span<float> actual = parameters.in(gradients, id);
        const std::vector<double> expected =
            golden_numbers(golden.at("step0").at("gradient").at(name), actual.size());
        double squares = 0;
        for (std::size_t i = 0; i < expected.size(); ++i)
          squares += std::pow(actual[i] - expected[i], 2);
        EXPECT_LT(std::sqrt(squares), 1e-6 * norm_of(std::span<const double>(expected)));
      }
    };
    run.run();
    EXPECT_EQ(run.steps.size(), 1U);
  }
}

}  // namespace
}  // namespace barestep
