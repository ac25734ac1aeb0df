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

/// All properties of an activation except its arithmetic.
struct ActivationTraits {
  bool is_module = false;         // a module that nn.Sequential can hold
  std::string_view bias_label{};  // label of a BiasActivation
  std::string_view grad_label{};  // label of an ActivationGrad
  /// The ActivationGrad as a formula: {0} is the gradient, {1} the number it is computed from.
  std::string_view grad_text{};
  /// True: the gradient is computed from the activation's input, which training then has to keep.
  /// False: it is computed from the output, which is there anyway.
  bool grad_from_input = false;
  /// The gradient needs more of the output than its sign, so training keeps the output if dropout
  /// changes it.
  bool grad_from_value = false;
  std::int64_t flops = 0;  // per number, as in Cost
  std::int64_t grad_flops = 0;
};

/// A bias without an activation keeps the label of the most common op.
constexpr ActivationTraits traits_of(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return {.is_module = true,
              .bias_label = "bias_relu",
              .grad_label = "relu_grad",
              .grad_text = "{0} = 0 where {1} <= 0",
              .flops = 1,
              .grad_flops = 1};
    case Activation::kGelu:
      return {.is_module = true,
              .bias_label = "bias_gelu",
              .grad_label = "gelu_grad",
              .grad_text = "{0} *= slope of gelu at {1}",
              .grad_from_input = true,
              .flops = 5,
              .grad_flops = 11};
    case Activation::kGeluTanh:
      return {.is_module = true,
              .bias_label = "bias_gelu_tanh",
              .grad_label = "gelu_tanh_grad",
              .grad_text = "{0} *= slope of gelu-tanh at {1}",
              .grad_from_input = true,
              .flops = 9,
              .grad_flops = 18};
    case Activation::kSilu:
      return {.is_module = true,
              .bias_label = "bias_silu",
              .grad_label = "silu_grad",
              .grad_text = "{0} *= slope of silu at {1}",
              .grad_from_input = true,
              .flops = 3,
              .grad_flops = 8};
    case Activation::kTanh:
      return {.is_module = true,
              .bias_label = "bias_tanh",
              .grad_label = "tanh_grad",
              .grad_text = "{0} *= 1 - {1}^2",
              .grad_from_value = true,
              .flops = 1,
              .grad_flops = 3};
    case Activation::kSigmoid:
      return {.is_module = true,
              .bias_label = "bias_sigmoid",
              .grad_label = "sigmoid_grad",
              .grad_text = "{0} *= {1} * (1 - {1})",
              .grad_from_value = true,
              .flops = 3,
              .grad_flops = 3};
    case Activation::kLeakyRelu:
      return {.is_module = true,
              .bias_label = "bias_leaky_relu",
              .grad_label = "leaky_relu_grad",
              .grad_text = "{0} *= 0.01 where {1} <= 0",
              .flops = 2,
              .grad_flops = 2};
    case Activation::kNone:
      return {.bias_label = "bias_relu", .grad_label = "relu_grad"};
  }
  return {};
}

}  // namespace barestep
