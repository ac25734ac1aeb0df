// The products of a linear layer, for benchmarks.
#pragma once

#include "core/ops.h"

namespace barestep::bench {

enum Direction { kForward, kInputGradient, kWeightGradient };

/// The product of a layer in one direction. `x` and `y` are its input and output, or the gradients
/// with respect to them; the forward product has bias and ReLU in it.
inline Gemm linear_product(Direction direction, const Tensor& x, const Tensor& y,
                           const Tensor& weight, const Tensor& bias) {
  if (direction == kForward) {
    return {.c = y,
            .a = x,
            .b = weight,
            .transpose_b = true,
            .bias = bias,
            .activation = Activation::kRelu};
  }
  if (direction == kInputGradient) return {.c = x, .a = y, .b = weight};
  return {.c = weight, .a = y, .b = x, .transpose_a = true};
}

}  // namespace barestep::bench
