#include "train/optimizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/index.h"

namespace barestep {

OptimizerStep step_of(const OptimizerConfig& config) {
  const OptimizerNumbers numbers = numbers_of(config);
  const AdamStep adam{.beta1 = numbers.beta1,
                      .beta2 = numbers.beta2,
                      .eps = numbers.eps,
                      .weight_decay = numbers.weight_decay,
                      .decoupled = config.kind == OptimizerKind::kAdamW,
                      .amsgrad = config.amsgrad};
  switch (config.kind) {
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      return adam;
    case OptimizerKind::kSgd:
      return SgdStep{.momentum = config.momentum,
                     .weight_decay = numbers.weight_decay,
                     .nesterov = config.nesterov};
    case OptimizerKind::kRmsProp:
      return RmsPropStep{
          .eps = numbers.eps, .momentum = config.momentum, .weight_decay = numbers.weight_decay};
    case OptimizerKind::kAdagrad:
      return AdagradStep{.eps = numbers.eps, .weight_decay = numbers.weight_decay};
    case OptimizerKind::kLion:
      return LionStep{
          .beta1 = numbers.beta1, .beta2 = numbers.beta2, .weight_decay = numbers.weight_decay};
  }
  return adam;
}

FlatRange share_of_lines(const FlatRange& range, int rank, int ranks) {
  const Rows lines = share_of_rank(range.count / kLineNumbers, rank, ranks);
  return {range.first + lines.first * kLineNumbers, lines.count * kLineNumbers};
}

std::int64_t place_in(std::span<const FlatRange> held, std::int64_t number) {
  std::int64_t place = 0;
  for (const FlatRange& range : held) {
    if (number >= range.first && number < range.first + range.count) {
      return place + number - range.first;
    }
    place += range.count;
  }
  return place;
}

OptimizerState::OptimizerState(Buffers& buffers, const OptimizerConfig& config,
                               const Parameters& parameters, int device,
                               std::optional<std::vector<FlatRange>> ranges)
    : config_(config),
      parameters_(parameters),
      ranges_(ranges ? *std::move(ranges)
                     : std::vector{FlatRange{0, parameters.bytes() / bytes_of(DType::kF32)}}) {
  std::int64_t bytes = 0;
  for (const FlatRange& range : ranges_) bytes += range.count * bytes_of(DType::kF32);
  for (const std::string_view name : state_of(step_of(config))) {
    buffers_.push_back(buffers.get(name, Category::kOptimizer, bytes, device));
  }
}

DeviceOp OptimizerState::step(const UpdateTensors& tensors, int range) const {
  OptimizerUpdate update{.weights = tensors.parameters,
                         .grads = tensors.gradients,
                         .scalars = tensors.scalars,
                         .step = step_of(config_),
                         .clip = tensors.clip,
                         .first_update = tensors.first_update,
                         .loss_scale = tensors.loss_scale};
  const FlatRange& own = at(ranges_, range);
  const FlatRange held{place_in(ranges_, own.first), own.count};
  for (const BufferId buffer : buffers_) update.state.push_back(held.of(buffer));
  update.rounded = tensors.rounded;
  return update;
}

DeviceOp OptimizerState::step(const UpdateTensors& tensors, const Linear& linear,
                              const Factors& factors) const {
  const OptimizerStep step = step_of(config_);
  const auto* const adam = std::get_if<AdamStep>(&step);
  BARESTEP_REQUIRE(adam != nullptr, "this optimizer has a fused update");
  const auto weight_in = [&](BufferId flat, DType type = DType::kF32) {
    return parameters_.in(flat, linear.weight(), type);
  };
  const auto bias_in = [&](BufferId flat, DType type = DType::kF32) {
    return parameters_.in(flat, linear.bias(), type);
  };
  LinearAdam op{.weight = weight_in(tensors.parameters.buffer),
                .weight_moments1 = weight_in(buffers_[0]),
                .weight_moments2 = weight_in(buffers_[1]),
                .bias = bias_in(tensors.parameters.buffer),
                .bias_moments1 = bias_in(buffers_[0]),
                .bias_moments2 = bias_in(buffers_[1]),
                .grad_y = factors.grad_y,
                .x = factors.x,
                .scalars = tensors.scalars,
                .step = *adam,
                .clip = tensors.clip};
  if (const auto& rounded = tensors.rounded) {
    op.rounded_weight = weight_in(rounded->buffer, rounded->dtype);
    op.rounded_bias = bias_in(rounded->buffer, rounded->dtype);
  }
  return op;
}

std::string divergence_remedy(const OptimizerConfig& config) {
  // Outside the usual values: PyTorch's defaults are 1e-10 or 1e-8, 0 or 0.01, and 0.
  constexpr double kSmallEps = 1e-12;
  constexpr double kLargeDecay = 1;
  constexpr double kLargeMomentum = 0.99;
  std::vector<std::string> changes;
  const OptimizerNumbers numbers = numbers_of(config);
  if (traits_of(config.kind).has_eps && numbers.eps < kSmallEps) {
    changes.push_back(fmt::format("a larger --eps (it is {})", numbers.eps));
  }
  if (numbers.weight_decay > kLargeDecay) {
    changes.push_back(fmt::format("a smaller --weight-decay (it is {})", numbers.weight_decay));
  }
  if (config.momentum > kLargeMomentum) {
    changes.push_back(fmt::format("a smaller --momentum (it is {})", config.momentum));
  }
  changes.push_back(fmt::format("a smaller --lr (it is {})", numbers.lr));
  return fmt::format("use {}", fmt::join(changes, " or "));
}

double full_learning_rate(const OptimizerConfig& config, int world) {
  const double lr = numbers_of(config).lr;
  return config.lr_scale == LrScale::kLinear ? lr * world : lr;
}

double learning_rate(const OptimizerConfig& config, std::int64_t t, int world, std::int64_t steps) {
  const double full = full_learning_rate(config, world);
  if (t < config.lr_warmup) {
    return full * static_cast<double>(t) / static_cast<double>(config.lr_warmup);
  }
  const std::int64_t done = std::max<std::int64_t>(t - 1 - config.lr_warmup, 0);
  const double share = static_cast<double>(done) /
                       static_cast<double>(std::max<std::int64_t>(steps - config.lr_warmup, 1));
  const double min = config.lr_min.value_or(0);
  switch (config.lr_schedule) {
    case LrSchedule::kConstant:
      return full;
    case LrSchedule::kLinear:
      return full + (min - full) * share;
    case LrSchedule::kCosine:
      return min + (full - min) * (1 + std::cos(std::numbers::pi * share)) / 2;
    case LrSchedule::kStep: {
      const std::int64_t reductions = done / config.lr_step.value_or(kDefaultLrStep);
      return full * std::pow(config.lr_gamma.value_or(kDefaultLrGamma), reductions);
    }
  }
  return full;
}

}  // namespace barestep
