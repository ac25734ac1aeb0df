// What a model is trained to make small.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/index.h"

namespace barestep {

/// The arithmetic stands in kernels/formulas.h.
enum class LossKind { kMse, kL1, kHuber, kCrossEntropy, kBce };
template <>
inline constexpr std::string_view kNamesOf<LossKind>[] = {"mse", "l1", "huber", "cross-entropy",
                                                          "bce"};

/// What there is to say of a loss, but for its arithmetic.
struct LossTraits {
  bool takes_labels = false;  // compares with integers; else with numbers
  // Of a loss that is a mean over single numbers. Cross-entropy, which is none, is an op of its
  // own.
  std::string_view label{};
  std::string_view text{};  // what is summed up: {0} output, {1} target
  std::int64_t flops = 0;   // for each number with its gradient, as Cost counts them
};

constexpr LossTraits traits_of(LossKind loss) {
  switch (loss) {
    case LossKind::kMse:
      // Difference, square and sum, times 2 / count.
      return {.label = "mse_loss", .text = "({0} - {1})^2", .flops = 4};
    case LossKind::kL1:
      // Difference, its sign and size, sum.
      return {.label = "l1_loss", .text = "|{0} - {1}|", .flops = 4};
    case LossKind::kHuber:
      // Difference, its size, square and half of it, sum, comparison, times 1 / count.
      return {.label = "huber_loss", .text = "huber({0} - {1})", .flops = 7};
    case LossKind::kCrossEntropy:
      return {.takes_labels = true};
    case LossKind::kBce:
      // The loss takes 8: an exponential and a logarithm among them; the gradient 5.
      return {.takes_labels = true,
              .label = "bce_loss",
              .text = "-log of sigmoid({0}) where {1} is 1, of 1 - sigmoid({0}) where it is 0",
              .flops = 13};
  }
  return {};
}

constexpr bool takes_labels(LossKind loss) {
  return traits_of(loss).takes_labels;
}

/// Whether it is a mean over single numbers.
constexpr bool is_pointwise(LossKind loss) {
  return !traits_of(loss).label.empty();
}

}  // namespace barestep
