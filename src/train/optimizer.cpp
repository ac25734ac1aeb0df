#include "train/optimizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace barestep {
namespace {

constexpr std::string_view kMoments1 = "moments1";
constexpr std::string_view kMoments2 = "moments2";
constexpr std::string_view kVelocities = "velocities";

std::vector<std::string_view> buffer_names(const OptimizerConfig& config) {
  switch (config.kind) {
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      return {kMoments1, kMoments2};
    case OptimizerKind::kSgd:
      if (config.momentum > 0) return {kVelocities};
      return {};
  }
  return {};
}

/// The tensors of a step over flat buffers.
struct FlatTensors {
  Tensor weights, grads;
  std::vector<Tensor> state;  // one for each of buffer_names()
  Tensor scalars;
  std::optional<Tensor> clip;
};

DeviceOp adam_of(const OptimizerConfig& config, const FlatTensors& tensors, bool decoupled) {
  return Adam{.weights = tensors.weights,
              .grads = tensors.grads,
              .moments1 = tensors.state.at(0),
              .moments2 = tensors.state.at(1),
              .scalars = tensors.scalars,
              .beta1 = config.beta1,
              .beta2 = config.beta2,
              .eps = config.eps,
              .weight_decay = weight_decay_of(config),
              .decoupled = decoupled,
              .clip = tensors.clip};
}

DeviceOp sgd_of(const OptimizerConfig& config, const FlatTensors& tensors) {
  Sgd sgd{.weights = tensors.weights,
          .grads = tensors.grads,
          .scalars = tensors.scalars,
          .momentum = config.momentum,
          .weight_decay = weight_decay_of(config),
          .nesterov = config.nesterov,
          .clip = tensors.clip};
  if (!tensors.state.empty()) sgd.velocities = tensors.state.front();
  return sgd;
}

DeviceOp step_of(const OptimizerConfig& config, const FlatTensors& tensors) {
  switch (config.kind) {
    case OptimizerKind::kAdam:
      return adam_of(config, tensors, false);
    case OptimizerKind::kAdamW:
      return adam_of(config, tensors, true);
    case OptimizerKind::kSgd:
      return sgd_of(config, tensors);
  }
  return {};
}

/// Adam's -lr / (1 - beta1^t) and sqrt(1 - beta2^t).
void write_corrected(const OptimizerConfig& config, double lr, std::int64_t t,
                     std::span<float> scalars) {
  const auto power = static_cast<double>(t);
  scalars[0] = static_cast<float>(-(lr / (1 - std::pow(config.beta1, power))));
  scalars[1] = static_cast<float>(std::sqrt(1 - std::pow(config.beta2, power)));
}

}  // namespace

OptimizerState::OptimizerState(Buffers& buffers, const OptimizerConfig& config,
                               const ParameterLayout& layout, int device,
                               std::optional<FlatRange> range)
    : config_(config),
      layout_(layout),
      range_(range.value_or(FlatRange{0, layout.bytes() / bytes_of(DType::kF32)})) {
  for (const std::string_view name : buffer_names(config)) {
    const std::int64_t bytes = range_.count * bytes_of(DType::kF32);
    buffers_.push_back(buffers.get(name, Category::kOptimizer, bytes, device));
  }
}

DeviceOp OptimizerState::step(BufferId parameters, BufferId gradients, const Tensor& scalars,
                              const std::optional<Tensor>& clip) const {
  FlatTensors tensors{.weights = range_.of(parameters),
                      .grads = range_.of(gradients),
                      .state = {},
                      .scalars = scalars,
                      .clip = clip};
  for (const BufferId buffer : buffers_) {
    tensors.state.push_back(FlatRange{0, range_.count}.of(buffer));
  }
  return step_of(config_, tensors);
}

DeviceOp OptimizerState::step(BufferId parameters, int layer, const Factors& factors,
                              const Tensor& scalars, const std::optional<Tensor>& clip) const {
  const auto linear_adam = [&](bool decoupled) {
    return LinearAdam{.weight = layout_.weight(parameters, layer),
                      .weight_moments1 = layout_.weight(buffers_[0], layer),
                      .weight_moments2 = layout_.weight(buffers_[1], layer),
                      .bias = layout_.bias(parameters, layer),
                      .bias_moments1 = layout_.bias(buffers_[0], layer),
                      .bias_moments2 = layout_.bias(buffers_[1], layer),
                      .grad_y = factors.grad_y,
                      .x = factors.x,
                      .scalars = scalars,
                      .beta1 = config_.beta1,
                      .beta2 = config_.beta2,
                      .eps = config_.eps,
                      .weight_decay = weight_decay_of(config_),
                      .decoupled = decoupled,
                      .clip = clip};
  };
  switch (config_.kind) {
    case OptimizerKind::kAdam:
      return linear_adam(false);
    case OptimizerKind::kAdamW:
      return linear_adam(true);
    case OptimizerKind::kSgd:
      break;
  }
  report_bug(__FILE__, __LINE__, "has_fused_update", "this optimizer has no fused update");
}

std::string_view torch_name_of_state(std::string_view buffer) {
  if (buffer == kMoments1) return "exp_avg";
  if (buffer == kMoments2) return "exp_avg_sq";
  BARESTEP_REQUIRE(buffer == kVelocities, "a buffer of an optimizer");
  return "momentum_buffer";
}

std::int64_t scalars_of(const OptimizerConfig& config) {
  switch (config.kind) {
    case OptimizerKind::kAdam:
      return 2;
    case OptimizerKind::kAdamW:
      return 3;
    case OptimizerKind::kSgd:
      return 1;
  }
  return 0;
}

void write_scalars(const OptimizerConfig& config, std::int64_t t, int world,
                   std::span<float> scalars) {
  const double lr = learning_rate(config, t, world);
  switch (config.kind) {
    case OptimizerKind::kAdam:
      return write_corrected(config, lr, t, scalars);
    case OptimizerKind::kAdamW:
      write_corrected(config, lr, t, scalars);
      scalars[2] = static_cast<float>(1 - lr * weight_decay_of(config));
      return;
    case OptimizerKind::kSgd:
      scalars[0] = static_cast<float>(-lr);
      return;
  }
}

std::string divergence_remedy(const OptimizerConfig& config) {
  // Beyond what anybody trains with: PyTorch's defaults are 1e-8, 0 or 0.01, and 0.
  constexpr double kSmallEps = 1e-12;
  constexpr double kLargeDecay = 1;
  constexpr double kLargeMomentum = 0.99;
  std::vector<std::string> changes;
  if (traits_of(config.kind).has_eps && config.eps < kSmallEps) {
    changes.push_back(fmt::format("a larger --eps (it is {})", config.eps));
  }
  if (const double decay = weight_decay_of(config); decay > kLargeDecay) {
    changes.push_back(fmt::format("a smaller --weight-decay (it is {})", decay));
  }
  if (config.momentum > kLargeMomentum) {
    changes.push_back(fmt::format("a smaller --momentum (it is {})", config.momentum));
  }
  changes.push_back(fmt::format("a smaller --lr (it is {})", config.lr));
  return fmt::format("use {}", fmt::join(changes, " or "));
}

double learning_rate(const OptimizerConfig& config, std::int64_t t, int world) {
  const double full = config.lr_scale == LrScale::kLinear ? config.lr * world : config.lr;
  if (t >= config.lr_warmup) return full;
  return full * static_cast<double>(t) / static_cast<double>(config.lr_warmup);
}

}  // namespace barestep
