#include "core/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/units.h"

namespace barestep {

std::string text_of(const Range& range) {
  return fmt::format("a whole number from {} to {}", range.first, range.last);
}

std::string text_of(const RealRange& range) {
  const std::string low = fmt::format("{} {}", range.with_low ? "of at least" : "above", range.low);
  return std::isinf(range.end) ? fmt::format("a number {}", low)
                               : fmt::format("a number {} and below {}", low, range.end);
}

OutOfRange out_of_range(const RealRange& range, double value) {
  using Float32 = std::numeric_limits<float>;
  if (range.as_float32 && value > 0 && RealRange::underflows(value)) {
    return {
        "rounds to 0 in float32",
        fmt::format("give {}at least {}", range.with_low ? "0 or " : "", Float32::denorm_min())};
  }
  if (range.as_float32 && value > 0 && RealRange::overflows(value) && std::isfinite(value)) {
    return {"overflows float32", fmt::format("give at most {}", Float32::max())};
  }
  const bool is_below = value < range.end && !RealRange::overflows(value);
  if (range.as_float32 && is_below && range.reaches_end(value)) {
    const float max = std::nextafter(static_cast<float>(range.end), 0.0F);
    return {fmt::format("rounds to {} in float32", range.end), fmt::format("give at most {}", max)};
  }
  return {"out of range", "give " + text_of(range)};
}

bool is_device_name(std::string_view name) {
  if (name == "auto" || name == "cpu" || name == "cuda") return true;
  constexpr std::string_view kPrefix = "cuda:";
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  return !name.empty() && name.size() <= 3 &&
         std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
}

int ordinal_of(std::string_view device) {
  const std::size_t digits = device.find(':') + 1;  // 0 if there is no colon
  int ordinal = 0;
  std::from_chars(device.data() + digits, device.data() + device.size(), ordinal);
  return ordinal;
}

std::string text_of(const Flip& flip) {
  const std::string node = flip.node ? fmt::format(":{}", *flip.node) : "";
  const std::string rank = flip.rank > 0 ? fmt::format(",rank {}", flip.rank) : "";
  return fmt::format("{}:{}:{}{}@{}{}", flip.buffer, flip.word, flip.bit, node, flip.step, rank);
}

void require_fit_for_cpu(const DeviceConfig& device) {
  if (device.precision == Precision::kTf32) {
    fail(ExitCode::kConfiguration, {"--precision", "tf32", "the CPU has no tf32",
                                    "use --precision fp32 or bf16, or --device cuda"});
  }
  if (!device.autotune.empty()) {
    fail(ExitCode::kConfiguration,
         {"--autotune", device.autotune.string(), "there is nothing to choose from on the CPU",
          "leave it out, or use --device cuda"});
  }
}

std::vector<std::int64_t> widths_of(const ModelConfig& model, std::int64_t default_dim) {
  if (!model.layers.empty()) return model.layers;
  const auto count = static_cast<std::size_t>(model.depth.value_or(kDefaultDepth)) + 1;
  return std::vector<std::int64_t>(count, model.dim.value_or(default_dim));
}

std::int64_t heads_of(const ModelConfig& model, std::int64_t dim) {
  const bool has_usual = dim % kDefaultHeadWidth == 0;
  return model.heads.value_or(has_usual ? dim / kDefaultHeadWidth : 1);
}

AttentionShape attention_of(const ModelConfig& model, std::int64_t dim) {
  const std::int64_t heads = heads_of(model, dim);
  if (dim % heads != 0) {
    fail(ExitCode::kConfiguration,
         {"--heads", std::to_string(heads), fmt::format("does not divide --dim, which is {}", dim),
          "give a number of heads that divides it"});
  }
  if (dim / heads > kMaxHeadWidth) {
    const std::string why =
        fmt::format("a head would be {} numbers wide, and the kernels take at most {}", dim / heads,
                    kMaxHeadWidth);
    std::int64_t fewest = (dim + kMaxHeadWidth - 1) / kMaxHeadWidth;
    while (dim % fewest != 0) ++fewest;
    if (model.heads) {
      fail(ExitCode::kConfiguration,
           {"--heads", std::to_string(heads), why, fmt::format("give at least {} heads", fewest)});
    }
    fail(ExitCode::kConfiguration,
         {"--dim", std::to_string(dim), fmt::format("without --heads {}", why),
          fmt::format("give --heads {}, or a multiple of {}", fewest, kDefaultHeadWidth)});
  }
  return {.heads = heads,
          .length = model.length.value_or(kDefaultLength),
          .causal = model.causal,
          .form = model.attention};
}

std::int64_t ffn_of(const ModelConfig& model, std::int64_t dim) {
  return model.ffn.value_or(4 * dim);
}

std::optional<LossScaling> loss_scaling_of(const TrainConfig& config) {
  if (config.device.precision != Precision::kFp16 || config.training.evaluate_only) {
    return std::nullopt;
  }
  LossScaling scaling = config.training.loss_scale.value_or(LossScaling{});
  scaling.window = config.training.loss_scale_window.value_or(scaling.window);
  return scaling;
}

OptimizerNumbers numbers_of(const OptimizerConfig& optimizer) {
  const OptimizerNumbers usual = traits_of(optimizer.kind).defaults;
  return {.lr = optimizer.lr.value_or(usual.lr),
          .beta1 = optimizer.beta1.value_or(usual.beta1),
          .beta2 = optimizer.beta2.value_or(usual.beta2),
          .eps = optimizer.eps.value_or(usual.eps),
          .weight_decay = optimizer.weight_decay.value_or(usual.weight_decay)};
}

std::int64_t micro_batches_of(const ParallelConfig& parallel) {
  if (parallel.pipeline == 1) return 1;
  const bool is_naive = parallel.schedule == PipelineSchedule::kNaive;
  return parallel.micro_batches.value_or(is_naive ? 1 : parallel.pipeline);
}

OptimizerConfig with_numbers(OptimizerConfig optimizer) {
  const auto [lr, beta1, beta2, eps, weight_decay] = numbers_of(optimizer);
  const OptimizerTraits traits = traits_of(optimizer.kind);
  optimizer.lr = lr;
  if (traits.has_betas) optimizer.beta1 = beta1;
  if (traits.has_betas) optimizer.beta2 = beta2;
  if (traits.has_eps) optimizer.eps = eps;
  optimizer.weight_decay = weight_decay;
  return optimizer;
}

OptimizerConfig with_defaults(const OptimizerConfig& optimizer) {
  OptimizerConfig full = with_numbers(optimizer);
  full.lr_min = optimizer.lr_min.value_or(0);
  full.lr_step = optimizer.lr_step.value_or(kDefaultLrStep);
  full.lr_gamma = optimizer.lr_gamma.value_or(kDefaultLrGamma);
  return full;
}

std::int64_t warmup_of(const TrainingConfig& training, std::int64_t steps) {
  if (!training.warmup) return std::min(kDefaultWarmup, steps - 1);
  if (*training.warmup < steps) return *training.warmup;
  fail(ExitCode::kConfiguration,
       {"--warmup", std::to_string(*training.warmup),
        fmt::format("the run has {}, and none would be left to measure", counted(steps, "step")),
        fmt::format("--warmup {} or --steps {} fits", steps - 1, *training.warmup + 1)});
}

std::int64_t first_measured_step(const TrainingConfig& training, std::int64_t steps,
                                 std::int64_t done) {
  const std::int64_t left = steps - done;
  return done + std::min(warmup_of(training, steps), std::max(left - 1, std::int64_t{0}));
}

StepRange profiled_steps_of(const TrainConfig& config, std::int64_t steps, std::int64_t done) {
  constexpr std::int64_t kMax = 50;
  if (!config.output.profile_steps) {
    const std::int64_t measured = steps - first_measured_step(config.training, steps, done);
    const std::int64_t first = steps - std::clamp((measured + 1) / 2, std::int64_t{1}, kMax);
    return {std::max(first, done), steps};
  }
  const StepRange requested = *config.output.profile_steps;
  if (requested.end <= steps) return {std::max(requested.first, done), requested.end};
  fail(ExitCode::kConfiguration,
       {"--profile-steps", fmt::format("{}:{}", requested.first, requested.end),
        fmt::format("the run has the steps 0 to {}", steps - 1),
        fmt::format("{}:{} fits, or give more --steps", std::min(requested.first, steps - 1),
                    steps)});
}

}  // namespace barestep
