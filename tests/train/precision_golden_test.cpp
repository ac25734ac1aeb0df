// Training in bf16 and fp16 compared with torch.autocast and torch.amp.GradScaler: PyTorch 2.15 on
// a CPU with AVX-512, whose dispatch log and saved tensors gave the rounding points
// (tests/golden/precision). In the tiny files, every sum is exact in fp32 or rounds the same in any
// order, so all numbers must equal PyTorch's.
#include <nlohmann/json.hpp>

#include "core/random.h"
#include "kernels/cpu/product.h"
#include "kernels/formulas.h"
#include "support/file_runs.h"
#include "support/golden.h"
#include "support/layers.h"
#include "support/npy_bytes.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

using nlohmann::json;

json precision_golden(const std::string& name) {
  return json::parse(std::ifstream(golden_path("precision/" + name)));
}

/// NaN and infinities are stored as text.
float number_of(const json& value) {
  if (!value.is_string()) return value.get<float>();
  return std::strtof(value.get<std::string>().c_str(), nullptr);
}

class PrecisionGolden : public TempDirTest, public testing::WithParamInterface<std::string> {
 protected:
  [[nodiscard]] bool is(const char* part) const {
    return GetParam().find(part) != std::string::npos;
  }

  [[nodiscard]] TrainConfig config(GemmProvider gemm = GemmProvider::kReference) {
    TrainConfig config;
    config.model.layers = golden_.at("widths").get<std::vector<std::int64_t>>();
    config.model.last_relu = golden_.at("last_relu");
    config.data.batch_size = golden_.at("batch");
    config.training.steps = golden_.at("steps").get<std::int64_t>();
    config.training.seed = golden_.at("seed");
    config.training.accumulate = golden_.value("accumulate", 1);
    if (golden_.contains("clip_grad_norm")) config.training.clip_norm = golden_["clip_grad_norm"];
    config.device.precision = is("fp16") ? Precision::kFp16 : Precision::kBf16;
    config.device.gemm = gemm;
    config.device.threads = 2;
    if (golden_.contains("scaler")) {
      const json& scaler = golden_.at("scaler");
      config.training.loss_scale = LossScaling{.initial = scaler.at("init_scale")};
      config.training.loss_scale_window = scaler.at("growth_interval").get<std::int64_t>();
    }
    if (golden_.at("loss") == "ce" || config.training.accumulate > 1) write_samples(config);
    return config;
  }

  /// PyTorch drew the samples of each micro-step after the weights: x, then y. Class labels are
  /// computed from the rows' numbers.
  void write_samples(TrainConfig& config) {
    const std::vector<std::int64_t>& widths = config.model.layers;
    const bool labels = golden_.at("loss") == "ce";
    if (labels) config.model.loss = LossKind::kCrossEntropy;
    const std::int64_t rows = config.data.batch_size;
    const std::int64_t draws = *config.training.steps * config.training.accumulate;
    TorchGenerator generator(config.training.seed);
    static_cast<void>(initial_weights({.widths = widths}, generator));
    std::vector<float> x;
    std::vector<float> y;
    std::vector<std::int64_t> classes;
    const auto draw = [&](std::vector<float>& numbers, std::int64_t cols) {
      std::vector<float> drawn(static_cast<std::size_t>(rows * cols));
      generator.randn(drawn);
      numbers.insert(numbers.end(), drawn.begin(), drawn.end());
    };
    for (std::int64_t i = 0; i < draws; ++i) {
      draw(x, widths.front());
      if (!labels) draw(y, widths.back());
      for (std::int64_t row = 0; row < rows && labels; ++row) {
        classes.push_back(row % widths.back());
      }
    }
    const auto shape = [&](std::int64_t cols) {
      return std::to_string(rows * draws) + ", " + std::to_string(cols);
    };
    config.data.kind = DataKind::kNpy;
    config.data.x = file("x.npy", npy_bytes("<f4", shape(widths.front()), x));
    config.data.y = labels ? file("y.npy", npy_bytes("<i8", shape(1), classes))
                           : file("y.npy", npy_bytes("<f4", shape(widths.back()), y));
    config.data.shuffle = false;
  }

  /// The loss of a step over all its micro-steps.
  [[nodiscard]] double loss_of(std::int64_t step) const {
    const std::int64_t parts = golden_.value("accumulate", 1);
    double sum = 0;
    for (std::int64_t i = 0; i < parts; ++i) {
      const auto index = static_cast<std::size_t>(step * parts + i);
      sum += static_cast<double>(parse_float(golden_.at("losses_hex").at(index)));
    }
    return sum;
  }

  void expect_scaling(const StepReport& report, const Position& position) const {
    if (!golden_.contains("scaler")) {
      EXPECT_FALSE(report.scaling);
      return;
    }
    const auto expected = [&](const char* name) {
      return golden_.at(name).at(static_cast<std::size_t>(report.step)).get<double>();
    };
    EXPECT_EQ(report.scaling->used, expected("scale"));
    EXPECT_EQ(report.scaling->skipped, expected("found_inf") > 0);
    EXPECT_EQ(report.scaling->next, expected("scale_after"));
    EXPECT_EQ(position.scaling->scale, expected("scale_after"));
    EXPECT_EQ(position.scaling->good_steps, expected("growth_tracker_after"));
    EXPECT_EQ(position.scaling->updates, expected("adam_step_after"));
  }

  const json golden_ = precision_golden(GetParam());
};

TEST_P(PrecisionGolden, HasPyTorchsLossesAndTheStateOfItsScaler) {
  for (const GemmProvider gemm : kValuesOf<GemmProvider>) {
    if (gemm == GemmProvider::kOneDnn && make_onednn_product() == nullptr) continue;
    if (gemm == GemmProvider::kCblas && make_cblas_product() == nullptr) continue;
    SCOPED_TRACE(name_of(gemm));
    TrainerHarness run(config(gemm));
    // The bound on what a different order of fp32 sums can change.
    const double bound = is("overflow") || is("clip") ? 4e-4 : 1e-4;
    run.after_step = [&](const StepReport& report) {
      SCOPED_TRACE(report.step);
      const double loss = loss_of(report.step);
      EXPECT_NEAR(report.loss, loss, bound * std::abs(loss));
      expect_scaling(report, run.trainer->position());
    };
    run.run();
    EXPECT_EQ(std::ssize(run.steps), golden_.at("steps").get<std::int64_t>());
  }
}

/// Adam on one weight as rounded by PyTorch 2.15: the first moment uses lerp, where PyTorch 1.13
/// and barestep use two products, which give the same result except for the last bit.
struct NewerAdam {
  float moment1 = 0, moment2 = 0;

  void step(float grad, std::int32_t update, float& weight) {
    const auto one_minus_beta1 = static_cast<float>(1 - 0.9);
    const auto one_minus_beta2 = static_cast<float>(1 - 0.999);
    float& m = moment1;
    float& v = moment2;
    m = std::fma(one_minus_beta1, grad - m, m);
    v = std::fma(one_minus_beta2 * grad, grad, v * 0.999F);
    const auto scale = static_cast<float>(-(1e-3 / (1 - std::pow(0.9, update))));
    const auto root = static_cast<float>(std::sqrt(1 - std::pow(0.999, update)));
    weight += scale * m / (std::sqrt(v) / root + 1e-8F);
  }
};

using TinyPrecisionGolden = PrecisionGolden;

TEST_P(TinyPrecisionGolden, HasPyTorchsBits) {
  TrainerHarness run(config());
  const ModelSpec& model = run.programs->spec().model;
  const Parameters& list = run.programs->parameter_list();
  const bool exact_loss = !is("_ce_");  // exp and log depend on the library
  FlatWeights replayed = run.trainer->weights();
  std::vector<NewerAdam> adam(replayed.size());
  run.after_step = [&](const StepReport& report) {
    SCOPED_TRACE(report.step);
    const json& step = at(golden_.at("steps_full"), report.step);
    if (exact_loss) {
      EXPECT_EQ(report.loss, static_cast<float>(loss_of(report.step)));
    } else {
      EXPECT_NEAR(report.loss, loss_of(report.step), 1e-6);
    }
    const auto& scaling = run.trainer->position().scaling;
    const std::int32_t update =
        scaling ? scaling->updates : static_cast<std::int32_t>(report.step) + 1;
    const float scale = report.scaling ? report.scaling->used : 1;
    const Addresses& addresses = run.trainer->runner().addresses(0);
    FlatWeights weights = run.trainer->weights();
    const auto expect = [&](const std::string& name, const Tensor& gradient) {
      const json& parameters = step.at("params_after").at(name);
      const json& gradients = step.at("grads_fp32_before_unscale").at(name);
      ASSERT_EQ(gradient.size(), std::ssize(parameters));
      for (std::int64_t i = 0; i < gradient.size(); ++i) {
        const float grad = with_number(gradient.dtype, [&]<class Number>(Number) {
          return float_of(addresses.at<Number>(gradient)[i]);
        });
        const float expected = number_of(at(gradients, i));
        EXPECT_TRUE(grad == expected || (std::isnan(grad) && std::isnan(expected))) << name;
        const std::int64_t place = gradient.offset_bytes / bytes_of(gradient.dtype) + i;
        float& weight = at(replayed, place);
        if (!report.scaling || !report.scaling->skipped) {
          at(adam, place).step(grad / scale, update, weight);
        }
        const float of_torch = number_of(at(parameters, i));
        EXPECT_EQ(weight, of_torch) << name << " at " << i;
        EXPECT_NEAR(at(weights, place), of_torch, 2e-10 + 1.2e-7 * std::abs(of_torch))
            << name << " at " << i;
      }
    };
    for (int layer = 0; layer < model.layers(); ++layer) {
      const std::string module = std::to_string(2 * layer);
      const BufferId gradients = run.programs->gradients();
      expect(module + ".weight", list.in(gradients, weight_id(layer), model.gradient_type()));
      expect(module + ".bias", list.in(gradients, bias_id(layer), model.gradient_type()));
    }
  };
  run.run();
}

std::vector<std::string> precision_goldens(const std::string& part) {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(golden_path("x").parent_path() / "precision")) {
    const std::string name = entry.path().stem().string();
    if (name.starts_with("amp_") && name.find(part) != std::string::npos) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Amp, PrecisionGolden, testing::ValuesIn(precision_goldens("")),
                         [](const auto& golden) { return golden.param; });
INSTANTIATE_TEST_SUITE_P(Amp, TinyPrecisionGolden, testing::ValuesIn(precision_goldens("tiny")),
                         [](const auto& golden) { return golden.param; });

/// A run in which the fused update is possible.
TrainConfig bf16_config() {
  TrainConfig config;
  config.model.layers = {70, 65, 130, 9};
  config.data.batch_size = 20;
  config.training.steps = 6;
  config.device.precision = Precision::kBf16;
  config.device.gemm = GemmProvider::kReference;
  return config;
}

class Bf16OfFiles : public TempDirTest {};

// With plain loops, as above. A smaller last batch has another number of micro-steps.
TEST_F(Bf16OfFiles, RoundsTheGradientOfAllMicroStepsOnceInTheFusedUpdate) {
  TrainConfig config = number_run(folder());
  config.data.drop_last = true;
  config.device.precision = Precision::kBf16;
  const auto weights_of = [&](Update update, std::int64_t accumulate) {
    config.training.update = update;
    config.training.accumulate = accumulate;
    config.data.batch_size = 8 / accumulate;
    TrainerHarness run(config);
    run.run();
    return run.trainer->weights();
  };
  const FlatWeights whole = weights_of(Update::kFused, 1);
  EXPECT_EQ(weights_of(Update::kFused, 4), whole);
  EXPECT_EQ(weights_of(Update::kSeparate, 1), whole);
  EXPECT_NE(weights_of(Update::kSeparate, 4), whole);
}

// The optimizer maintains the copy that products read; nothing else writes it after the start.
TEST(Bf16, ReadsTheWeightsRounded) {
  for (const Update update : {Update::kSeparate, Update::kFused}) {
    TrainConfig config = bf16_config();
    config.training.update = update;
    TrainerHarness run(config);
    run.run();
    const Tensor& rounded_weights = run.programs->operands();
    const auto* const copy = run.trainer->runner().addresses(0).at<Bf16>(rounded_weights);
    const FlatWeights weights = run.trainer->weights();
    for (std::size_t i = 0; i < weights.size(); ++i) ASSERT_EQ(copy[i], bf16_of(weights[i])) << i;
  }
}

// Section 3.1 of the literature on mixed precision: bytes per parameter.
struct StateBytes {
  Precision precision;
  Update update;
  std::int64_t accumulate;
  std::int64_t bytes;
};

TEST(MixedPrecision, TakesTheBytesForEachParameterThatItsFormsNeed) {
  constexpr StateBytes kForms[] = {
      {Precision::kFp32, Update::kSeparate, 1, 16}, {Precision::kFp32, Update::kFused, 1, 12},
      {Precision::kBf16, Update::kSeparate, 1, 16}, {Precision::kFp16, Update::kSeparate, 1, 16},
      {Precision::kBf16, Update::kSeparate, 2, 18}, {Precision::kBf16, Update::kFused, 1, 14}};
  for (const StateBytes& form : kForms) {
    TrainConfig config;
    config.model.layers = {256, 256, 256};
    config.training.update = form.update;
    config.training.accumulate = form.accumulate;
    config.device.precision = form.precision;
    const StepPrograms programs = programs_of(config);
    const std::int64_t numbers = programs.parameter_list().bytes() / bytes_of(DType::kF32);
    std::int64_t bytes = 0;
    for (const Buffer& buffer : programs.buffers().all()) {
      const bool of_all = buffer.bytes >= 2 * numbers;  // not only for a layer or a step
      if (of_all && buffer.category != Category::kActivations) bytes += buffer.bytes;
    }
    EXPECT_EQ(bytes, form.bytes * numbers)
        << name_of(form.precision) << " " << name_of(form.update) << " " << form.accumulate;
  }
}

TEST(MixedPrecision, HalvesTheActivations) {
  const auto bytes_of_activations = [](Precision precision) {
    TrainConfig config = bf16_config();
    config.device.precision = precision;
    const StepPrograms programs = programs_of(config);
    std::int64_t bytes = 0;
    for (const Buffer& buffer : programs.buffers().all()) {
      if (buffer.category == Category::kActivations && buffer.name != "net.0.x") {
        bytes += buffer.bytes;
      }
    }
    return bytes;
  };
  EXPECT_EQ(2 * bytes_of_activations(Precision::kBf16), bytes_of_activations(Precision::kFp32));
}

TEST(LossScaleOfARun, EndsItWhenNoGradientIsLeft) {
  TrainConfig config = bf16_config();
  config.device.precision = Precision::kFp16;
  config.training.loss_scale = LossScaling{.initial = 1};
  config.training.steps = 40;
  config.optimizer.lr = 1e30;
  TrainerHarness run(config);
  try {
    run.run();
    FAIL() << "it goes on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDiverged);
    EXPECT_THAT(error.what(), HasSubstr("training diverged: gradients overflow at any loss scale"));
    EXPECT_THAT(error.what(), HasSubstr("or --precision bf16"));
  }
}

TEST(LossScaleOfARun, NeverChangesWhenItIsFixed) {
  TrainConfig config = bf16_config();
  config.device.precision = Precision::kFp16;
  config.training.loss_scale = LossScaling{.dynamic = false, .initial = 1e8};
  TrainerHarness run(config);
  const FlatWeights before = run.trainer->weights();
  run.run();
  for (const StepReport& step : run.steps) {
    EXPECT_TRUE(step.scaling->skipped) << "the gradients are infinite";
    EXPECT_EQ(step.scaling->next, 1e8F);
  }
  EXPECT_EQ(run.trainer->weights(), before);
}

TEST(LossScale, FollowsTheRulesOfGradScaler) {
  const json rules = precision_golden("gradscaler_rules");
  for (const json& sequence : rules.at("update_scale")) {
    SCOPED_TRACE(sequence.at("name"));
    const UpdateLossScale op{.state = {},
                             .good_steps = {},
                             .growth = sequence.at("growth_factor"),
                             .backoff = sequence.at("backoff_factor"),
                             .window = sequence.at("growth_interval")};
    LossScaleNumbers numbers{number_of(sequence.at("init_scale")), 0, 0};
    for (const json& row : sequence.at("rows_found_inf__scale_after__tracker_after")) {
      update_loss_scale(op, number_of(row[0]) > 0, numbers);
      EXPECT_EQ(numbers.scale, number_of(row[1]));
      EXPECT_EQ(numbers.good_steps, row[2].get<std::int32_t>());
    }
  }
}

TEST(LossScale, UnscalesGradientsAsGradScalerDoes) {
  const json rules = precision_golden("gradscaler_rules");
  for (const json& unscaled : rules.at("unscale")) {
    const float scale = number_of(unscaled.at("scale"));
    const float inverse = inverse_scale(&scale);
    EXPECT_EQ(inverse, parse_float(unscaled.at("inv_scale_hex")));
    bool all_finite = true;
    for (std::size_t i = 0; i < unscaled.at("grad").size(); ++i) {
      const float grad = number_of(unscaled.at("grad")[i]);
      all_finite = all_finite && is_finite(grad);
      const float expected = number_of(unscaled.at("after")[i]);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(grad * inverse));
      } else {
        EXPECT_EQ(grad * inverse, expected);
      }
    }
    EXPECT_EQ(!all_finite, number_of(unscaled.at("found_inf")) > 0);
  }
}

}  // namespace
}  // namespace barestep
