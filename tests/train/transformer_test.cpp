// Transformer blocks against torch.nn.TransformerEncoderLayer: initial values, gradients, losses;
// and the ways of training them against each other.

#include "parallel/schemes/zero.h"
#include "support/attention_golden.h"
#include "support/golden.h"
#include "support/near.h"
#include "support/rank_run.h"
#include "support/spread_run.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

using nlohmann::json;

json transformer_golden(const std::string& name) {
  return attention_golden(golden_path("x").parent_path(), name);
}

struct GoldenCase {
  std::string name;
  double error;  // relative, of losses
};

class TransformerGolden : public testing::TestWithParam<GoldenCase> {};

TEST_P(TransformerGolden, HasPyTorchsLossesInBothForms) {
  const json golden = transformer_golden(GetParam().name);
  TrainConfig config = config_of_transformer(golden);
  TrainerHarness flash(config);
  flash.run();
  expect_within(flash.losses(), golden.at("losses").get<std::vector<double>>(), GetParam().error);
  config.model.attention = AttentionForm::kStandard;
  TrainerHarness standard(config);
  standard.run();
  expect_within(standard.losses(), golden.at("losses_math_kernel").get<std::vector<double>>(),
                GetParam().error);
}

// In 16 bits, leaving out any rounding point moves the losses of the tiny case by 9e-5 or more.
INSTANTIATE_TEST_SUITE_P(Transformer, TransformerGolden,
                         testing::Values(GoldenCase{"tiny_d16_h2_l4_b2_n1_s0", 5e-7},
                                         GoldenCase{"d64_h4_l16_b4_n2_s0", 5e-7},
                                         GoldenCase{"d64_h4_l16_b4_n2_s1", 5e-7},
                                         GoldenCase{"causal_d64_h4_l16_b4_n2_s0", 5e-7},
                                         GoldenCase{"causal_d64_h4_l16_b4_n2_s1", 5e-7},
                                         GoldenCase{"bf16_tiny_d16_h2_l4_b2_n1_s0", 1e-6},
                                         GoldenCase{"bf16_tiny_d16_h2_l4_b1_n1_s0", 1e-6},
                                         GoldenCase{"bf16_tiny_d16_h2_l1_b2_n1_s0", 1e-6},
                                         GoldenCase{"bf16_d64_h4_l32_b2_n2_s0", 2e-4},
                                         GoldenCase{"bf16_d64_h4_l32_b2_n2_s1", 2e-4}),
                         [](const auto& golden) { return golden.param.name; });

// Tests of a GPU have the same goldens.
TEST(Transformer, HasTheLossesThatPyTorchHasOnAGpusNumbers) {
  for (const char* const name :
       {"cuda_d64_h4_l16_b4_n2_s0", "cuda_d64_h4_l16_b4_n2_s1", "cuda_causal_d64_h4_l16_b4_n2_s0",
        "cuda_causal_d64_h4_l16_b4_n2_s1"}) {
    SCOPED_TRACE(name);
    const json golden = transformer_golden(name);
    TrainerHarness run(config_of_transformer(golden), Generator::kTorchCuda);
    const Tensor x = run.programs->train().tensors.x;
    run.after_step = [&](const StepReport& report) {
      if (report.step > 0) return;
      const float* const first = run.trainer->runner().addresses(0).at(x);
      for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(first[i], golden.at("x_first8")[i], 5e-6);
    };
    run.run();
    expect_within(run.losses(), golden.at("losses").get<std::vector<double>>(), 1e-6);
  }
}

/// Numbers of a golden tensor; zeros at its end are left out there.
std::vector<double> golden_numbers(const json& list, std::size_t count) {
  std::vector<double> numbers = hex_numbers(list);
  numbers.resize(count);
  return numbers;
}

TEST(TransformerBlock, StartsWithPyTorchsWeightsToTheBit) {
  const json golden = transformer_golden("tiny_d16_h2_l4_b2_n1_s0");
  const TrainerHarness run(config_of_transformer(golden));
  FlatWeights weights = run.trainer->weights();
  const Parameters& parameters = run.programs->parameter_list();
  ASSERT_EQ(golden.at("names").size(), static_cast<std::size_t>(parameters.count()));
  for (const std::string name : golden.at("names")) {
    const std::optional<ParameterId> id = parameters.find(name);
    ASSERT_TRUE(id) << name;
    const std::span<float> actual = parameters.in(weights, *id);
    const std::vector<double> expected =
        golden_numbers(golden.at("initial_hex").at(name), actual.size());
    EXPECT_TRUE(std::equal(actual.begin(), actual.end(), expected.begin())) << name;
  }
}

TEST(TransformerBlock, HasPyTorchsGradients) {
  const json golden = transformer_golden("tiny_d16_h2_l4_b2_n1_s0");
  for (const AttentionForm form : kValuesOf<AttentionForm>) {
    TrainConfig config = config_of_transformer(golden);
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

/// SGD, since Adam makes whole steps of the keys' biases, whose gradients are rounding errors.
TrainConfig small_transformer() {
  TrainConfig config;
  config.model = {.dim = 16,
                  .depth = 4,
                  .block = BlockKind::kTransformer,
                  .heads = 2,
                  .length = 6,
                  .ffn = 24,
                  .causal = true};
  config.data.batch_size = 12;
  config.training.steps = 4;
  config.optimizer = {.kind = OptimizerKind::kSgd, .lr = 0.1};
  config.device.threads = 1;
  config.device.gemm = GemmProvider::kReference;
  return config;
}

TEST(TransformerRun, HasTheGradientsOfTheWholeBatchInMicroSteps) {
  TrainConfig config = small_transformer();
  config.training.clip_norm = 0.05;
  const Trained whole = train_single(config);
  config.data.batch_size = 4;
  config.training.accumulate = 3;
  const Trained parts = train_single(config);
  EXPECT_LT(relative_distance(parts.losses, whole.losses), 1e-6);
  EXPECT_LT(relative_distance(parts.parameters, whole.parameters), 1e-6);
}

TEST(TransformerRun, TrainsOnRanksAsOnOneDevice) {
  const TrainConfig config = small_transformer();
  const Trained single = train_single(config);
  for (const int ranks : {2, 3}) {
    const std::vector<Trained> ddp = train_threads(ranks, config);
    EXPECT_LT(relative_distance(ddp[0].losses, single.losses), 1e-6);
    EXPECT_LT(relative_distance(ddp[0].parameters, single.parameters), 1e-6);
    for (const int stage : {1, 2, 3}) {
      EXPECT_EQ(train_threads_by(Zero(stage, small_buckets()), ranks, config), ddp) << stage;
    }
  }
}

TEST(TransformerRun, TrainsInEveryPrecision) {
  TrainConfig config = small_transformer();
  const Trained wide = train_single(config);
  for (const Precision precision : {Precision::kBf16, Precision::kFp16}) {
    config.device.precision = precision;
    const Trained narrow = train_single(config);
    EXPECT_NE(narrow.losses, wide.losses);
    EXPECT_LT(relative_distance(narrow.losses, wide.losses), 2e-3);
    EXPECT_LT(relative_distance(train_threads(2, config)[0].losses, wide.losses), 2e-3);
  }
}

/// Not to the bit, since ranks and devices round their gradients before the sum.
TEST(TransformerRun, ReadsNormsInFp32WhereOnlyRoundedParametersAreSent) {
  TrainConfig config = small_transformer();
  config.device.precision = Precision::kBf16;
  const std::vector<Trained> ddp = train_threads(2, config);
  EXPECT_EQ(train_threads_by(Zero(3, small_buckets()), 2, config), ddp);
  const SpreadRun spread = train_spread(config, {.devices = 2});
  EXPECT_LT(relative_distance(spread.losses, ddp[0].losses), 1e-4);
  EXPECT_LT(relative_distance(spread.parameters, ddp[0].parameters), 1e-3);
}

TEST(TransformerRun, KeepsALineOfScoresForEveryRowInTheStandardForm) {
  TrainConfig config = small_transformer();
  const auto kept = [&](AttentionForm form) {
    config.model.attention = form;
    const StepPrograms programs = programs_of(config);
    EXPECT_GT(expect_every_deletion_found(programs.train().program), 0);
    std::int64_t bytes = 0;
    for (const Buffer& buffer : programs.buffers().all()) {
      if (buffer.name.ends_with("self_attn.kept")) bytes += buffer.bytes;
    }
    return bytes;
  };
  EXPECT_EQ(kept(AttentionForm::kFlash), 4 * 12 * 6 * 2 * 4);
  EXPECT_EQ(kept(AttentionForm::kStandard), 4 * 12 * 6 * 2 * 6 * 4);
}

/// Bytes of what backward reads of forward, without the memory that gradients and temporary
/// numbers share.
std::int64_t kept_bytes(const TrainConfig& config) {
  const StepPrograms programs = programs_of(config);
  std::int64_t bytes = 0;
  for (const Buffer& buffer : programs.buffers().all()) {
    if (buffer.category != Category::kActivations) continue;
    if (buffer.name.starts_with("scratch") || buffer.name.starts_with("grad")) continue;
    bytes += buffer.bytes;
  }
  return bytes;
}

TEST(TransformerRun, KeepsTheNumbersOfTheFormulas) {
  constexpr std::int64_t kBlocks = 8, kDim = 256, kHeads = 4, kLength = 128, kRows = 4 * kLength;
  TrainConfig config;
  config.model = {.dim = kDim,
                  .depth = kBlocks,
                  .block = BlockKind::kTransformer,
                  .heads = kHeads,
                  .length = kLength};
  config.data.batch_size = kRows / kLength;
  // n1, qkv, o, a, n2, h twice (before and after GELU) and the output; means and deviations of two
  // norms, and attention's sums. The input is the batch or the output of the block before.
  const std::int64_t small = kRows * (4 + kHeads);
  const std::int64_t each = 16 * kRows * kDim + small;
  EXPECT_EQ(kept_bytes(config), 4 * kBlocks * each);
  config.model.attention = AttentionForm::kStandard;
  const std::int64_t scores = kRows * kHeads * (kLength - 1);
  EXPECT_EQ(kept_bytes(config), 4 * kBlocks * (each + scores));
  config.model.attention = AttentionForm::kFlash;
  // Of a segment only the output is kept; its blocks' other numbers are in memory that all
  // segments share.
  for (const std::int64_t segments : {2, 4, 8}) {
    config.training.recompute = segments;
    EXPECT_EQ(kept_bytes(config),
              4 * (segments * kRows * kDim + kBlocks / segments * each - kRows * kDim))
        << segments;
  }
  config.training.recompute = 1;
  config.device.precision = Precision::kBf16;
  // Branches have two bytes a number, the stream's two rows four.
  EXPECT_EQ(kept_bytes(config), kBlocks * ((2 * 14 + 4 * 2) * kRows * kDim + 4 * small));
}

TEST(TransformerRun, RecomputesAllButTheLastProductOfASegmentToTheSameBits) {
  TrainConfig config = small_transformer();
  config.model.depth = 4;
  const Trained expected = train_single(config);
  config.device.graph = true;
  EXPECT_EQ(train_single(config), expected);
  config.device.graph = false;
  for (const std::int64_t segments : {2, 4}) {
    config.training.recompute = segments;
    EXPECT_EQ(train_single(config), expected) << segments;
    const StepPrograms programs = programs_of(config);
    EXPECT_GT(expect_every_deletion_found(programs.train().program), 0);
    int products = 0;
    for (const Node& node : programs.train().program.nodes()) {
      products += node.phase == Phase::kRecompute && op_if<Gemm>(node.op) != nullptr ? 1 : 0;
    }
    EXPECT_EQ(products, (segments - 1) * (4 * 4 / segments - 1));
  }
}
}  // namespace
}  // namespace barestep
