// The losses that training minimizes.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/index.h"

namespace barestep {

/// The arithmetic is in kernels/formulas.h.
enum class LossKind { kMse, kL1, kHuber, kCrossEntropy, kBce };
template <>
inline constexpr std::string_view kNamesOf<LossKind>[] = {"mse", "l1", "huber", "cross-entropy",
                                                          "bce"};

/// All properties of a loss except its arithmetic.
struct LossTraits {
  bool takes_labels = false;  // the target holds integers; else real numbers
  // For a loss that is a mean over single numbers. Cross-entropy is not one and has an op of its
  // own.
  std::string_view label{};
  std::string_view text{};  // a term of the sum: {0} output, {1} target
  std::int64_t flops = 0;   // per number, including its gradient, as in Cost
};

inline constexpr EnumArray<LossKind, LossTraits> kLossTraits = {
    {{// Per number: difference, square, sum, times 2 / count.
      {.label = "mse_loss", .text = "({0} - {1})^2", .flops = 4},
      // Per number: difference, sign, magnitude, sum.
      {.label = "l1_loss", .text = "|{0} - {1}|", .flops = 4},
      // Per number: difference, magnitude, square, half of it, sum, comparison, times 1 / count.
      {.label = "huber_loss", .text = "huber({0} - {1})", .flops = 7},
      {.takes_labels = true},
      // The loss takes 8, including an exponential and a logarithm; the gradient takes 5.
      {.takes_labels = true,
       .label = "bce_loss",
       .text = "-log of sigmoid({0}) where {1} is 1, of 1 - sigmoid({0}) where it is 0",
       .flops = 13}}}};

constexpr const LossTraits& traits_of(LossKind loss) {
  return kLossTraits[loss];
}

constexpr bool takes_labels(LossKind loss) {
  return traits_of(loss).takes_labels;
}

/// Whether it is a mean over single numbers.
constexpr bool is_pointwise(LossKind loss) {
  return !traits_of(loss).label.empty();
}

}  // namespace barestep
