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

std::vector<std::string_view> buffer_names(const OptimizerSpec& spec) {
  if (spec.kind != OptimizerKind::kSgd) return {"moments1", "moments2"};
  if (spec.momentum > 0) return {"velocities"};
  return {};
}

}  // namespace

OptimizerSpec optimizer_of(const TrainingConfig& training) {
  return {.kind = training.optimizer,
          .beta1 = training.beta1,
          .beta2 = training.beta2,
          .eps = training.eps,
          .momentum = training.momentum,
          .nesterov = training.nesterov,
          .weight_decay = weight_decay_of(training)};
}

OptimizerState::OptimizerState(Buffers& buffers, const OptimizerSpec& spec,
                               const ParameterLayout& layout, int device,
                               std::optional<FlatRange> range)
    : spec_(spec),
      layout_(layout),
      range_(range.value_or(FlatRange{0, layout.bytes() / bytes_of(DType::kF32)})) {
  for (const std::string_view name : buffer_names(spec)) {
    const std::int64_t bytes = range_.count * bytes_of(DType::kF32);
    buffers_.push_back(buffers.get(name, Category::kOptimizer, bytes, device));
  }
}

DeviceOp OptimizerState::step(BufferId parameters, BufferId gradients, const Tensor& scalars,
                              const std::optional<Tensor>& clip) const {
  const Tensor weights = range_.of(parameters);
  const Tensor grads = range_.of(gradients);
  const auto state = [&](std::size_t i) { return FlatRange{0, range_.count}.of(buffers_[i]); };
  if (spec_.kind == OptimizerKind::kSgd) {
    Sgd sgd{.weights = weights,
            .grads = grads,
            .scalars = scalars,
            .momentum = spec_.momentum,
            .weight_decay = spec_.weight_decay,
            .nesterov = spec_.nesterov,
            .clip = clip};
    if (!buffers_.empty()) sgd.velocities = state(0);
    return sgd;
  }
  return Adam{.weights = weights,
              .grads = grads,
              .moments1 = state(0),
              .moments2 = state(1),
              .scalars = scalars,
              .beta1 = spec_.beta1,
              .beta2 = spec_.beta2,
              .eps = spec_.eps,
              .weight_decay = spec_.weight_decay,
              .decoupled = spec_.kind == OptimizerKind::kAdamW,
              .clip = clip};
}

DeviceOp OptimizerState::step(BufferId parameters, int layer, const Factors& factors,
                              const Tensor& scalars, const std::optional<Tensor>& clip) const {
  BARESTEP_REQUIRE(spec_.kind != OptimizerKind::kSgd, "there is no such step of SGD");
  return LinearAdam{.weight = layout_.weight(parameters, layer),
                    .weight_moments1 = layout_.weight(buffers_[0], layer),
                    .weight_moments2 = layout_.weight(buffers_[1], layer),
                    .bias = layout_.bias(parameters, layer),
                    .bias_moments1 = layout_.bias(buffers_[0], layer),
                    .bias_moments2 = layout_.bias(buffers_[1], layer),
                    .grad_y = factors.grad_y,
                    .x = factors.x,
                    .scalars = scalars,
                    .beta1 = spec_.beta1,
                    .beta2 = spec_.beta2,
                    .eps = spec_.eps,
                    .weight_decay = spec_.weight_decay,
                    .decoupled = spec_.kind == OptimizerKind::kAdamW,
                    .clip = clip};
}

std::int64_t scalars_of(const OptimizerSpec& spec) {
  if (spec.kind == OptimizerKind::kSgd) return 1;
  return spec.kind == OptimizerKind::kAdamW ? 3 : 2;
}

void write_scalars(const TrainingConfig& training, std::int64_t t, int world,
                   std::span<float> scalars) {
  const double lr = learning_rate(training, t, world);
  if (training.optimizer == OptimizerKind::kSgd) {
    scalars[0] = static_cast<float>(-lr);
    return;
  }
  const auto power = static_cast<double>(t);
  const double correction1 = 1 - std::pow(training.beta1, power);
  const double correction2 = 1 - std::pow(training.beta2, power);
  scalars[0] = static_cast<float>(-(lr / correction1));
  scalars[1] = static_cast<float>(std::sqrt(correction2));
  if (training.optimizer == OptimizerKind::kAdamW) {
    scalars[2] = static_cast<float>(1 - lr * weight_decay_of(training));
  }
}

std::string divergence_remedy(const TrainingConfig& training) {
  // Beyond what anybody trains with: PyTorch's defaults are 1e-8, 0 or 0.01, and 0.
  constexpr double kSmallEps = 1e-12;
  constexpr double kLargeDecay = 1;
  constexpr double kLargeMomentum = 0.99;
  std::vector<std::string> changes;
  if (training.optimizer != OptimizerKind::kSgd && training.eps < kSmallEps) {
    changes.push_back(fmt::format("a larger --eps (it is {})", training.eps));
  }
  if (const double decay = weight_decay_of(training); decay > kLargeDecay) {
    changes.push_back(fmt::format("a smaller --weight-decay (it is {})", decay));
  }
  if (training.momentum > kLargeMomentum) {
    changes.push_back(fmt::format("a smaller --momentum (it is {})", training.momentum));
  }
  changes.push_back(fmt::format("a smaller --lr (it is {})", training.lr));
  return fmt::format("use {}", fmt::join(changes, " or "));
}

double learning_rate(const TrainingConfig& training, std::int64_t t, int world) {
  const double full = training.lr_scale == LrScale::kLinear ? training.lr * world : training.lr;
  if (t >= training.lr_warmup) return full;
  return full * static_cast<double>(t) / static_cast<double>(training.lr_warmup);
}

}  // namespace barestep
