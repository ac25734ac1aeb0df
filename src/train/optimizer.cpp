#include "train/optimizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace barestep {
namespace {

/// The tensors of a step over flat buffers.
struct FlatTensors {
  Tensor weights, grads;
  std::vector<Tensor> state;  // one for each of state_names()
  Tensor scalars;
};

DeviceOp adam_of(const OptimizerConfig& config, const FlatTensors& tensors, bool decoupled) {
  const OptimizerNumbers numbers = numbers_of(config);
  Adam adam{.weights = tensors.weights,
            .grads = tensors.grads,
            .moments1 = tensors.state.at(0),
            .moments2 = tensors.state.at(1),
            .scalars = tensors.scalars,
            .beta1 = numbers.beta1,
            .beta2 = numbers.beta2,
            .eps = numbers.eps,
            .weight_decay = numbers.weight_decay,
            .decoupled = decoupled};
  if (config.amsgrad) adam.max_moments2 = tensors.state.at(2);
  return adam;
}

DeviceOp sgd_of(const OptimizerConfig& config, const FlatTensors& tensors) {
  Sgd sgd{.weights = tensors.weights,
          .grads = tensors.grads,
          .scalars = tensors.scalars,
          .momentum = config.momentum,
          .weight_decay = numbers_of(config).weight_decay,
          .nesterov = config.nesterov};
  if (!tensors.state.empty()) sgd.velocities = tensors.state.front();
  return sgd;
}

DeviceOp rmsprop_of(const OptimizerConfig& config, const FlatTensors& tensors) {
  const OptimizerNumbers numbers = numbers_of(config);
  RmsProp rmsprop{.weights = tensors.weights,
                  .grads = tensors.grads,
                  .squares = tensors.state.at(0),
                  .scalars = tensors.scalars,
                  .eps = numbers.eps,
                  .momentum = config.momentum,
                  .weight_decay = numbers.weight_decay};
  if (config.momentum > 0) rmsprop.velocities = tensors.state.at(1);
  return rmsprop;
}

DeviceOp step_of(const OptimizerConfig& config, const FlatTensors& tensors) {
  const OptimizerNumbers numbers = numbers_of(config);
  switch (config.kind) {
    case OptimizerKind::kAdam:
      return adam_of(config, tensors, false);
    case OptimizerKind::kAdamW:
      return adam_of(config, tensors, true);
    case OptimizerKind::kSgd:
      return sgd_of(config, tensors);
    case OptimizerKind::kRmsProp:
      return rmsprop_of(config, tensors);
    case OptimizerKind::kAdagrad:
      return Adagrad{.weights = tensors.weights,
                     .grads = tensors.grads,
                     .sum = tensors.state.at(0),
                     .scalars = tensors.scalars,
                     .eps = numbers.eps,
                     .weight_decay = numbers.weight_decay};
    case OptimizerKind::kLion:
      return Lion{.weights = tensors.weights,
                  .grads = tensors.grads,
                  .moments = tensors.state.at(0),
                  .scalars = tensors.scalars,
                  .beta1 = numbers.beta1,
                  .beta2 = numbers.beta2};
  }
  return {};
}

/// Adam's -lr / (1 - beta1^t) and sqrt(1 - beta2^t).
void write_corrected(const OptimizerConfig& config, double lr, std::int64_t t,
                     std::span<float> scalars) {
  const auto power = static_cast<double>(t);
  const OptimizerNumbers numbers = numbers_of(config);
  scalars[0] = static_cast<float>(-(lr / (1 - std::pow(numbers.beta1, power))));
  scalars[1] = static_cast<float>(std::sqrt(1 - std::pow(numbers.beta2, power)));
}

/// The factor of decoupled weight decay.
float shrink_of(const OptimizerConfig& config, double lr) {
  return static_cast<float>(1 - lr * numbers_of(config).weight_decay);
}

}  // namespace

std::vector<std::string_view> state_names(const OptimizerConfig& config) {
  switch (config.kind) {
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      if (config.amsgrad) return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
      return {"exp_avg", "exp_avg_sq"};
    case OptimizerKind::kSgd:
      if (config.momentum > 0) return {"momentum_buffer"};
      return {};
    case OptimizerKind::kRmsProp:
      if (config.momentum > 0) return {"square_avg", "momentum_buffer"};
      return {"square_avg"};
    case OptimizerKind::kAdagrad:
      return {"sum"};
    case OptimizerKind::kLion:
      return {"exp_avg"};
  }
  return {};
}

OptimizerState::OptimizerState(Buffers& buffers, const OptimizerConfig& config,
                               const ParameterLayout& layout, int device,
                               std::optional<FlatRange> range)
    : config_(config),
      layout_(layout),
      range_(range.value_or(FlatRange{0, layout.bytes() / bytes_of(DType::kF32)})) {
  for (const std::string_view name : state_names(config)) {
    const std::int64_t bytes = range_.count * bytes_of(DType::kF32);
    buffers_.push_back(buffers.get(name, Category::kOptimizer, bytes, device));
  }
}

DeviceOp OptimizerState::step(const UpdateTensors& tensors) const {
  FlatTensors flat{.weights = updated(tensors.parameters),
                   .grads = updated(tensors.gradients),
                   .state = {},
                   .scalars = tensors.scalars};
  for (const BufferId buffer : buffers_) {
    flat.state.push_back(FlatRange{0, range_.count}.of(buffer));
  }
  DeviceOp op = step_of(config_, flat);
  std::visit(
      [&]<class AnyOp>(AnyOp& update) {
        if constexpr (requires { update.first_update; }) {
          update.clip = tensors.clip;
          if (tensors.rounded) update.rounded = updated(*tensors.rounded);
          update.loss_scale = tensors.loss_scale;
          update.first_update = tensors.first_update;
        }
      },
      op);
  return op;
}

DeviceOp OptimizerState::step(const UpdateTensors& tensors, int layer,
                              const Factors& factors) const {
  const OptimizerNumbers numbers = numbers_of(config_);
  const BufferId parameters = tensors.parameters.buffer;
  const auto linear_adam = [&](bool decoupled) {
    LinearAdam op{.weight = layout_.weight(parameters, layer),
                  .weight_moments1 = layout_.weight(buffers_[0], layer),
                  .weight_moments2 = layout_.weight(buffers_[1], layer),
                  .bias = layout_.bias(parameters, layer),
                  .bias_moments1 = layout_.bias(buffers_[0], layer),
                  .bias_moments2 = layout_.bias(buffers_[1], layer),
                  .grad_y = factors.grad_y,
                  .x = factors.x,
                  .scalars = tensors.scalars,
                  .beta1 = numbers.beta1,
                  .beta2 = numbers.beta2,
                  .eps = numbers.eps,
                  .weight_decay = numbers.weight_decay,
                  .decoupled = decoupled,
                  .clip = tensors.clip};
    if (const auto& rounded = tensors.rounded) {
      op.rounded_weight = layout_.weight(rounded->buffer, layer, rounded->dtype);
      op.rounded_bias = layout_.bias(rounded->buffer, layer, rounded->dtype);
    }
    return op;
  };
  switch (config_.kind) {
    case OptimizerKind::kAdam:
      return linear_adam(false);
    case OptimizerKind::kAdamW:
      return linear_adam(true);
    case OptimizerKind::kSgd:
    case OptimizerKind::kRmsProp:
    case OptimizerKind::kAdagrad:
    case OptimizerKind::kLion:
      break;
  }
  report_bug(__FILE__, __LINE__, "has_fused_update", "this optimizer has no fused update");
}

std::int64_t scalars_of(const OptimizerConfig& config) {
  switch (config.kind) {
    case OptimizerKind::kAdam:
    case OptimizerKind::kLion:
      return 2;
    case OptimizerKind::kAdamW:
      return 3;
    case OptimizerKind::kSgd:
    case OptimizerKind::kRmsProp:
    case OptimizerKind::kAdagrad:
      return 1;
  }
  return 0;
}

void write_scalars(const OptimizerConfig& config, std::int64_t t, double lr,
                   std::span<float> scalars) {
  switch (config.kind) {
    case OptimizerKind::kAdam:
      return write_corrected(config, lr, t, scalars);
    case OptimizerKind::kAdamW:
      write_corrected(config, lr, t, scalars);
      scalars[2] = shrink_of(config, lr);
      return;
    case OptimizerKind::kLion:
      scalars[0] = static_cast<float>(-lr);
      scalars[1] = shrink_of(config, lr);
      return;
    case OptimizerKind::kSgd:
    case OptimizerKind::kRmsProp:
    case OptimizerKind::kAdagrad:
      scalars[0] = static_cast<float>(-lr);
      return;
  }
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
  const double least = config.lr_min.value_or(0);
  switch (config.lr_schedule) {
    case LrSchedule::kConstant:
      return full;
    case LrSchedule::kLinear:
      return full + (least - full) * share;
    case LrSchedule::kCosine:
      return least + (full - least) * (1 + std::cos(std::numbers::pi * share)) / 2;
    case LrSchedule::kStep: {
      const std::int64_t reductions = done / config.lr_step.value_or(kDefaultLrStep);
      return full * std::pow(config.lr_gamma.value_or(kDefaultLrGamma), reductions);
    }
  }
  return full;
}

}  // namespace barestep
