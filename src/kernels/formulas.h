// Arithmetic on single numbers, written once for every device.
//
// Products and sums round separately; what is fused says fma(). The formulas round as
// PyTorch 1.13's CPU kernels do, so that results can be compared bit by bit.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/host_device.h"

namespace barestep {

/// max(x, 0) as PyTorch has it: relu(-0) = -0, and NaN passes.
BARESTEP_HD inline float relu(float x) {
  return x < 0.0F ? 0.0F : x;
}

/// The gradient passes unless output <= 0; so it does where the output is NaN.
BARESTEP_HD inline float relu_grad(float grad, float output) {
  return output <= 0.0F ? 0.0F : grad;
}

/// beta * old + value. `old` is read only where beta asks for it: it may be uninitialised.
BARESTEP_HD inline float accumulate(float value, float beta, const float& old) {
  return beta == 0.0F ? value : value + beta * old;
}

/// 2 / count, the factor of the mean squared error's gradient.
BARESTEP_HD inline float mse_grad_factor(std::int64_t count) {
  return static_cast<float>(2.0 / static_cast<double>(count));
}

BARESTEP_HD inline float mse_grad(float factor, float output, float target) {
  return factor * (output - target);
}

BARESTEP_HD inline float squared_error(float output, float target) {
  const float error = output - target;
  return error * error;
}

/// True when `x` takes the place of `best` in a search for the largest: NaN counts as the largest,
/// and the first of equals stays, as in torch.argmax.
BARESTEP_HD inline bool is_larger(float x, float best) {
  return x > best || (x != x && best == best);
}

/// Adam's constants as they meet float32 tensors: differences are taken in double, then rounded.
struct AdamConstants {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, eps;

  AdamConstants(double b1, double b2, double epsilon)
      : beta1(static_cast<float>(b1)),
        one_minus_beta1(static_cast<float>(1.0 - b1)),
        beta2(static_cast<float>(b2)),
        one_minus_beta2(static_cast<float>(1.0 - b2)),
        eps(static_cast<float>(epsilon)) {}
};

/// One step of Adam on one weight, as torch.optim.Adam of PyTorch 1.13 rounds it on the CPU
/// (torch/optim/adam.py, _single_tensor_adam). `scale` is -lr / (1 - beta1^t), `root` is
/// sqrt(1 - beta2^t); eps is added behind the division by root.
BARESTEP_HD inline void adam_step(const AdamConstants& c, float scale, float root, float grad,
                                  float& weight, float& moment1, float& moment2) {
  moment1 = std::fma(grad, c.one_minus_beta1, moment1 * c.beta1);
  moment2 = std::fma(c.one_minus_beta2 * grad, grad, moment2 * c.beta2);
  const float denominator = std::sqrt(moment2) / root + c.eps;
  weight = weight + scale * moment1 / denominator;
}

/// The gradient with weight decay as a penalty on large weights.
BARESTEP_HD inline float decayed_grad(float decay, float grad, float weight) {
  return decay == 0.0F ? grad : std::fma(weight, decay, grad);
}

/// SGD's constants as they meet float32 tensors.
struct SgdConstants {
  float momentum, weight_decay;
  bool nesterov;
};

/// One step of SGD on one weight, as torch.optim.SGD of PyTorch 1.13 rounds it on the CPU
/// (torch/optim/sgd.py, _single_tensor_sgd, dampening 0). `scale` is -lr. `velocity` is null
/// without momentum, and 0 before the first step.
BARESTEP_HD inline void sgd_step(const SgdConstants& c, float scale, float grad, float& weight,
                                 float* velocity) {
  float step = decayed_grad(c.weight_decay, grad, weight);
  if (velocity != nullptr) {
    *velocity = step + *velocity * c.momentum;
    step = c.nesterov ? std::fma(*velocity, c.momentum, step) : *velocity;
  }
  weight = std::fma(step, scale, weight);
}

}  // namespace barestep
