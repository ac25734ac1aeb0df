// The activations that may follow a linear layer; each applies to every number on its own.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/index.h"

namespace barestep {

/// The arithmetic is in kernels/formulas.h.
enum class Activation { kRelu, kGelu, kGeluTanh, kSilu, kTanh, kSigmoid, kLeakyRelu, kNone };
template <>
inline constexpr std::string_view kNamesOf<Activation>[] = {
    "relu", "gelu", "gelu-tanh", "silu", "tanh", "sigmoid", "leaky-relu", "none"};

/// What the gradient is computed from.
enum class GradFrom {
  kSign,    // of the output
  kOutput,  // which training then keeps if dropout changes it
  kInput,   // which training then keeps; the output is there anyway
};

/// All properties of an activation except its arithmetic.
struct ActivationTraits {
  std::string_view bias_label, grad_label;  // of a BiasActivation and of an ActivationGrad
  /// The ActivationGrad as a formula: {0} is the gradient, {1} the number it is computed from.
  std::string_view grad_text{};
  GradFrom grad_from = GradFrom::kSign;
  std::int64_t flops = 0, grad_flops = 0;  // per number, as in Cost
};

/// A bias without an activation keeps the label of the most common op.
inline constexpr EnumArray<Activation, ActivationTraits> kActivationTraits = {
    {{{"bias_relu", "relu_grad", "{0} = 0 where {1} <= 0", GradFrom::kSign, 1, 1},
      {"bias_gelu", "gelu_grad", "{0} *= slope of gelu at {1}", GradFrom::kInput, 5, 11},
      {"bias_gelu_tanh", "gelu_tanh_grad", "{0} *= slope of gelu-tanh at {1}", GradFrom::kInput, 9,
       18},
      {"bias_silu", "silu_grad", "{0} *= slope of silu at {1}", GradFrom::kInput, 3, 8},
      {"bias_tanh", "tanh_grad", "{0} *= 1 - {1}^2", GradFrom::kOutput, 1, 3},
      {"bias_sigmoid", "sigmoid_grad", "{0} *= {1} * (1 - {1})", GradFrom::kOutput, 3, 3},
      {"bias_leaky_relu", "leaky_relu_grad", "{0} *= 0.01 where {1} <= 0", GradFrom::kSign, 2, 2},
      {"bias_relu", "relu_grad"}}}};

constexpr const ActivationTraits& traits_of(Activation activation) {
  return kActivationTraits[activation];
}

}  // namespace barestep
