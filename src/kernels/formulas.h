// Arithmetic on single numbers, written once for every device.
//
// Products and sums round separately, except where the code calls fma(). The formulas round as
// PyTorch 1.13's CPU kernels do, so results can be compared bit by bit.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/ops.h"
#include "kernels/elementary.h"
#include "kernels/host_device.h"

namespace barestep {

/// max(x, 0) as in PyTorch: relu(-0) = -0, and NaN passes through.
BARESTEP_HD inline float relu(float x) {
  return x < 0.0F ? 0.0F : x;
}

/// The gradient passes unless output <= 0, so it also passes if the output is NaN.
BARESTEP_HD inline float relu_grad(float grad, float output) {
  return output <= 0.0F ? 0.0F : grad;
}

/// The arithmetic of an activation: value(x), and grad(gradient of the output, from), the gradient
/// of x. `from` is x if the activation's traits say that the gradient is computed from the input,
/// else the output. A formula has its own grad() for numbers whose type PyTorch rounds to within
/// the formula.
template <Activation kActivation>
struct ActivationFormula;

template <>
struct ActivationFormula<Activation::kRelu> {
  BARESTEP_HD static float value(float x) { return relu(x); }
  BARESTEP_HD static float grad(float grad, float output) { return relu_grad(grad, output); }
};

/// torch.nn.GELU() (Hendrycks & Gimpel 2016): x times the standard normal distribution function.
template <>
struct ActivationFormula<Activation::kGelu> {
  static constexpr float kRootOfHalf = 0.70710678118654752F;
  static constexpr float kDensityAtZero = 0.39894228040143268F;  // 1 / sqrt(2 pi)

  BARESTEP_HD static float value(float x) { return of(x); }
  BARESTEP_HD static float grad(float grad, float x) { return grad_of(grad, x); }

  /// The same for vectors too.
  template <class Real>
  BARESTEP_HD static Real of(Real x) {
    return x * Real(0.5F) * (Real(1.0F) + error_function(x * Real(kRootOfHalf)));
  }
  template <class Real>
  BARESTEP_HD static Real grad_of(Real grad, Real x) {
    const Real below = Real(0.5F) * (Real(1.0F) + error_function(x * Real(kRootOfHalf)));
    const Real density = exponential(x * x * Real(-0.5F)) * Real(kDensityAtZero);
    return grad * (below + x * density);
  }
};

/// torch.nn.GELU(approximate="tanh").
template <>
struct ActivationFormula<Activation::kGeluTanh> {
  static constexpr float kScale = 0.79788456080286536F;  // sqrt(2 / pi)
  static constexpr float kCubic = 0.044715F;

  BARESTEP_HD static float value(float x) { return 0.5F * x * (1.0F + tanh_of(x)); }
  BARESTEP_HD static float grad(float grad, float x) {
    const float tanh = tanh_of(x);
    const float slope = kScale * (1.0F + 3.0F * kCubic * (x * x));
    return grad * (0.5F * (1.0F + tanh) + 0.5F * x * ((1.0F - tanh * tanh) * slope));
  }

 private:
  BARESTEP_HD static float tanh_of(float x) {
    return hyperbolic_tangent(kScale * (x + kCubic * (x * x * x)));
  }
};

BARESTEP_HD inline float sigmoid(float x) {
  const float e = exponential(-std::fabs(x));
  return (x < 0.0F ? e : 1.0F) / (1.0F + e);
}

template <>
struct ActivationFormula<Activation::kSilu> {
  BARESTEP_HD static float value(float x) { return x * sigmoid(x); }
  BARESTEP_HD static float grad(float grad, float x) {
    const float share = sigmoid(x);
    return grad * (share * (1.0F + x * (1.0F - share)));
  }
};

template <>
struct ActivationFormula<Activation::kTanh> {
  BARESTEP_HD static float value(float x) { return hyperbolic_tangent(x); }
  BARESTEP_HD static float grad(float grad, float output) {
    return grad * (1.0F - output * output);
  }
};

template <>
struct ActivationFormula<Activation::kSigmoid> {
  BARESTEP_HD static float value(float x) { return sigmoid(x); }
  BARESTEP_HD static float grad(float grad, float output) {
    return grad * (1.0F - output) * output;
  }
  /// PyTorch rounds each operation on fp16, though not on bf16.
  BARESTEP_HD static F16 grad(F16 grad, F16 output) {
    const float rest = float_of(f16_of(1.0F - float_of(output)));
    const float product = float_of(f16_of(float_of(grad) * rest));
    return f16_of(product * float_of(output));
  }
};

/// torch.nn.LeakyReLU(). NaN passes through.
template <>
struct ActivationFormula<Activation::kLeakyRelu> {
  static constexpr float kSlope = 0.01F;

  BARESTEP_HD static float value(float x) { return x > 0.0F ? x : x * kSlope; }
  BARESTEP_HD static float grad(float grad, float output) {
    return output > 0.0F ? grad : grad * kSlope;
  }
};

template <>
struct ActivationFormula<Activation::kNone> {
  BARESTEP_HD static float value(float x) { return x; }
  BARESTEP_HD static float grad(float grad, float /*output*/) { return grad; }
};

/// Whether a formula's gradient is computed from the activation's input.
template <class Formula>
inline constexpr bool kGradFromInput = false;
template <Activation kActivation>
inline constexpr bool kGradFromInput<ActivationFormula<kActivation>> =
    traits_of(kActivation).grad_from == GradFrom::kInput;

/// Calls use(formula of the activation).
template <class Use, std::size_t kFirst = 0>
auto with_activation(Activation activation, const Use& use) {
  constexpr Activation kActivation = kValuesOf<Activation>[kFirst];
  if constexpr (kFirst + 1 < kValuesOf<Activation>.size()) {
    if (activation != kActivation) return with_activation<Use, kFirst + 1>(activation, use);
  }
  return use(ActivationFormula<kActivation>{});
}

/// beta * old + value. Reads `old` only if beta is not 0, since it may be uninitialized.
BARESTEP_HD inline float accumulate(float value, float beta, const float& old) {
  return beta == 0.0F ? value : value + beta * old;
}

/// The arithmetic of a loss that is a mean over `count` single numbers: value(output, target) is a
/// term, and grad(factor(count), output, target) the gradient of the mean with respect to the
/// output.
template <LossKind kLoss>
struct LossFormula;

/// The factor in the gradient of a mean whose terms have the derivative `scale` times an
/// expression.
BARESTEP_HD inline float mean_factor(double scale, std::int64_t count) {
  return static_cast<float>(scale / static_cast<double>(count));
}

template <>
struct LossFormula<LossKind::kMse> {
  using Target = float;
  BARESTEP_HD static float factor(std::int64_t count) { return mean_factor(2, count); }
  BARESTEP_HD static float value(float output, float target) {
    const float error = output - target;
    return error * error;
  }
  BARESTEP_HD static float grad(float factor, float output, float target) {
    return factor * (output - target);
  }
};

template <>
struct LossFormula<LossKind::kL1> {
  using Target = float;
  BARESTEP_HD static float factor(std::int64_t count) { return mean_factor(1, count); }
  BARESTEP_HD static float value(float output, float target) { return std::fabs(output - target); }
  BARESTEP_HD static float grad(float factor, float output, float target) {
    const float error = output - target;
    return error > 0.0F ? factor : error < 0.0F ? -factor : factor * error;
  }
};

/// torch.nn.HuberLoss() (Huber 1964): quadratic up to an error of 1, linear beyond.
template <>
struct LossFormula<LossKind::kHuber> {
  using Target = float;
  BARESTEP_HD static float factor(std::int64_t count) { return mean_factor(1, count); }
  BARESTEP_HD static float value(float output, float target) {
    const float size = std::fabs(output - target);
    return size < 1.0F ? 0.5F * size * size : size - 0.5F;
  }
  BARESTEP_HD static float grad(float factor, float output, float target) {
    const float error = output - target;
    return error > 1.0F ? factor : error < -1.0F ? -factor : factor * error;
  }
};

/// torch.nn.BCEWithLogitsLoss(): binary cross-entropy of the sigmoid of the output.
template <>
struct LossFormula<LossKind::kBce> {
  using Target = std::int32_t;
  BARESTEP_HD static float factor(std::int64_t count) { return mean_factor(1, count); }
  BARESTEP_HD static float value(float output, std::int32_t target) {
    const float log_sigmoid =
        (output < 0.0F ? output : 0.0F) - log_of_one_plus(exponential(-std::fabs(output)));
    return static_cast<float>(1 - target) * output - log_sigmoid;
  }
  BARESTEP_HD static float grad(float factor, float output, std::int32_t target) {
    return (sigmoid(output) - static_cast<float>(target)) * factor;
  }
};

/// Calls use(formula of the loss), which must be pointwise.
template <class Use, std::size_t kFirst = 0>
auto with_loss(LossKind loss, const Use& use) {
  constexpr LossKind kLoss = kValuesOf<LossKind>[kFirst];
  if constexpr (!is_pointwise(kLoss)) {
    return with_loss<Use, kFirst + 1>(loss, use);
  } else {
    if constexpr (kFirst + 1 < kValuesOf<LossKind>.size()) {
      if (loss != kLoss) return with_loss<Use, kFirst + 1>(loss, use);
    }
    return use(LossFormula<kLoss>{});
  }
}

// LayerNorm and its gradient; see LayerNorm in core/ops.h. The order of operations is PyTorch's
// (aten/src/ATen/native/cpu/layer_norm_kernel.cpp) in what is not a sum.

/// 1 / the deviation of a row, from the mean of its squared deviations. In double, since squares
/// of large numbers overflow.
BARESTEP_HD inline float layer_norm_rstd(double variance) {
  constexpr float kEps = 1e-5F;
  return static_cast<float>(1 / std::sqrt(variance + kEps));
}
BARESTEP_HD inline float normalized(float x, float mean, float rstd) {
  return (x - mean) * rstd;
}
BARESTEP_HD inline float layer_norm(float normal, float weight, float bias) {
  return std::fma(normal, weight, bias);
}

/// 1 / root of a head's width: what its scores are multiplied by.
inline float attention_scale(std::int64_t width) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(width)));
}

/// True if `x` replaces `best` in a search for the maximum. NaN counts as the largest, and the
/// first of equals stays, as in torch.argmax.
BARESTEP_HD inline bool is_larger(float x, float best) {
  return x > best || (x != x && best == best);
}

/// The weights of a row's classes: `of_label` for the label, `of_others` for every other class.
struct LabelWeights {
  float of_label, of_others;

  LabelWeights(float smoothing, std::int64_t classes)
      : of_label(1.0F - smoothing + smoothing / static_cast<float>(classes)),
        of_others(smoothing / static_cast<float>(classes)) {}
};

/// The gradient of softmax cross-entropy, a mean over `count` rows, at one logit. `exponential` is
/// the logit's exponential; `sum` is the sum of the row's exponentials.
BARESTEP_HD inline float cross_entropy_grad(float exponential, float sum, bool is_label,
                                            const LabelWeights& weights, float count) {
  return (exponential / sum - (is_label ? weights.of_label : weights.of_others)) / count;
}

/// The sum over a row of -log_softmax times the class's weight. `largest` was subtracted from every
/// logit of the row's `classes` logits; `logits` is the sum of the results, and is read only with
/// label smoothing.
BARESTEP_HD inline float cross_entropy_loss(float label_logit, float largest, float sum,
                                            const LabelWeights& weights, std::int64_t classes,
                                            float logits) {
  const float of_label = logarithm(sum) - (label_logit - largest);
  if (weights.of_others == 0.0F) return of_label;
  const float of_all = static_cast<float>(classes) * logarithm(sum) - logits;
  return (weights.of_label - weights.of_others) * of_label + weights.of_others * of_all;
}

/// True unless infinite or NaN.
BARESTEP_HD inline bool is_finite(float x) {
  return x - x == 0.0F;
}
BARESTEP_HD inline bool is_finite(Bf16 x) {
  return (x.bits & 0x7F80U) != 0x7F80U;
}
BARESTEP_HD inline bool is_finite(F16 x) {
  return (x.bits & 0x7C00U) != 0x7C00U;
}

/// The factor that undoes loss scaling, 1 / *scale; 1 if `scale` is null
/// (torch.amp.GradScaler.unscale_).
BARESTEP_HD inline float inverse_scale(const float* scale) {
  return scale == nullptr ? 1.0F : static_cast<float>(1.0 / static_cast<double>(*scale));
}

/// The state of loss scaling after a step; see UpdateLossScale.
struct LossScaleNumbers {
  float scale;
  std::int32_t good_steps, updates;
};

BARESTEP_HD inline void update_loss_scale(const UpdateLossScale& op, bool found_inf,
                                          LossScaleNumbers& numbers) {
  if (!found_inf) ++numbers.updates;
  if (op.fixed) return;
  if (found_inf) {
    numbers.scale = static_cast<float>(static_cast<double>(numbers.scale) * op.backoff);
    numbers.good_steps = 0;
    return;
  }
  if (++numbers.good_steps < op.window) return;
  numbers.good_steps = 0;
  const auto grown = static_cast<float>(static_cast<double>(numbers.scale) * op.growth);
  if (is_finite(grown)) numbers.scale = grown;
}

/// The gradient plus the penalty for weight decay.
template <class Number>
BARESTEP_HD inline Number decayed_grad(float decay, Number grad, Number weight) {
  using std::fma;
  return decay == 0.0F ? grad : fma(weight, Number(decay), grad);
}

/// Adam's constants as applied to float32 tensors: differences are computed in double, then
/// rounded.
struct AdamConstants {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
  float penalty;   // weight decay added to the gradient
  bool decoupled;  // weight decay multiplies the weights

  explicit AdamConstants(const AdamStep& step)
      : beta1(static_cast<float>(step.beta1)),
        one_minus_beta1(static_cast<float>(1.0 - step.beta1)),
        beta2(static_cast<float>(step.beta2)),
        one_minus_beta2(static_cast<float>(1.0 - step.beta2)),
        eps(static_cast<float>(step.eps)),
        penalty(step.decoupled ? 0 : static_cast<float>(step.weight_decay)),
        decoupled(step.decoupled) {}
};

/// Adam's values that change from step to step: -lr / (1 - beta1^t), sqrt(1 - beta2^t), the factor
/// of decoupled weight decay and the factor of clipping.
struct AdamScalars {
  float scale, root, shrink, clip;

  /// `clip_factor` is null without clipping.
  BARESTEP_HD AdamScalars(const AdamConstants& c, const float* scalars, const float* clip_factor)
      : scale(scalars[0]),
        root(scalars[1]),
        shrink(c.decoupled ? scalars[2] : 1),
        clip(clip_factor == nullptr ? 1 : *clip_factor) {}
};

/// Square root and division as in the language.
struct PlainArithmetic {
  BARESTEP_HD static float divide(float a, float b) { return a / b; }
  BARESTEP_HD static float root(float x) { return std::sqrt(x); }
};

/// One step of Adam on one weight, rounded as torch.optim.Adam and AdamW of PyTorch 1.13 do on the
/// CPU (torch/optim/adam.py, _single_tensor_adam, and adamw.py). eps is added after the division by
/// root. `max_moment2` is null without AMSGrad; it keeps NaN, as torch.maximum does. Number is
/// float, or without AMSGrad a vector of floats.
template <class Arithmetic = PlainArithmetic, class Number>
BARESTEP_HD inline void adam_step(const AdamConstants& c, const AdamScalars& s, Number grad,
                                  Number& weight, Number& moment1, Number& moment2,
                                  float* max_moment2 = nullptr) {
  using std::fma;
  const Number shrunk = weight * s.shrink;
  grad = decayed_grad(c.penalty, Number(grad * s.clip), shrunk);
  moment1 = fma(grad, Number(c.one_minus_beta1), moment1 * c.beta1);
  moment2 = fma(c.one_minus_beta2 * grad, grad, moment2 * c.beta2);
  Number largest = moment2;
  if constexpr (std::is_same_v<Number, float>) {
    if (max_moment2 != nullptr) {
      if (is_larger(moment2, *max_moment2)) *max_moment2 = moment2;
      largest = *max_moment2;
    }
  }
  const Number denominator = Arithmetic::divide(Arithmetic::root(largest), Number(s.root)) + c.eps;
  weight = shrunk + Arithmetic::divide(s.scale * moment1, denominator);
}

/// SGD's constants as applied to float32 tensors.
struct SgdConstants {
  float momentum, weight_decay;
  bool nesterov;

  explicit SgdConstants(const SgdStep& step)
      : momentum(static_cast<float>(step.momentum)),
        weight_decay(static_cast<float>(step.weight_decay)),
        nesterov(step.nesterov) {}
};

/// The values that change from step to step for an optimizer with only a learning rate: -lr and the
/// factor of clipping.
struct RateScalars {
  float scale, clip;

  /// `clip_factor` is null without clipping.
  BARESTEP_HD RateScalars(const float* scalars, const float* clip_factor)
      : scale(scalars[0]), clip(clip_factor == nullptr ? 1 : *clip_factor) {}
};

/// One step of SGD on one weight, rounded as torch.optim.SGD of PyTorch 1.13 does on the CPU
/// (torch/optim/sgd.py, _single_tensor_sgd, dampening 0). `velocity` is null without momentum, and
/// 0 before the first step.
BARESTEP_HD inline void sgd_step(const SgdConstants& c, const RateScalars& s, float grad,
                                 float& weight, float* velocity) {
  float step = decayed_grad(c.weight_decay, grad * s.clip, weight);
  if (velocity != nullptr) {
    *velocity = step + *velocity * c.momentum;
    step = c.nesterov ? std::fma(*velocity, c.momentum, step) : *velocity;
  }
  weight = std::fma(step, s.scale, weight);
}

/// An optimizer for loops over flat buffers: how many numbers of state it has per weight, the
/// values that change from step to step, and its step on one weight.
template <bool kAmsGrad>
struct AdamRule {
  static constexpr int kState = kAmsGrad ? 3 : 2;
  AdamConstants constants;

  BARESTEP_HD AdamScalars at_step(const float* scalars, const float* clip_factor) const {
    return {constants, scalars, clip_factor};
  }
  BARESTEP_HD void operator()(const AdamScalars& s, float grad, float& weight, float* state) const {
    adam_step(constants, s, grad, weight, state[0], state[1], kAmsGrad ? state + 2 : nullptr);
  }
};

template <bool kMomentum>
struct SgdRule {
  static constexpr int kState = kMomentum ? 1 : 0;
  SgdConstants constants;

  BARESTEP_HD RateScalars at_step(const float* scalars, const float* clip_factor) const {
    return {scalars, clip_factor};
  }
  BARESTEP_HD void operator()(const RateScalars& s, float grad, float& weight, float* state) const {
    sgd_step(constants, s, grad, weight, kMomentum ? state : nullptr);
  }
};

/// One step of torch.optim.RMSprop on one weight (torch/optim/rmsprop.py, _single_tensor_rmsprop,
/// not centered).
template <bool kMomentum>
struct RmsPropRule {
  static constexpr int kState = kMomentum ? 2 : 1;
  float alpha, one_minus_alpha, eps, momentum, weight_decay;

  explicit RmsPropRule(const RmsPropStep& step)
      : alpha(static_cast<float>(step.alpha)),
        one_minus_alpha(static_cast<float>(1.0 - step.alpha)),
        eps(static_cast<float>(step.eps)),
        momentum(static_cast<float>(step.momentum)),
        weight_decay(static_cast<float>(step.weight_decay)) {}

  BARESTEP_HD RateScalars at_step(const float* scalars, const float* clip_factor) const {
    return {scalars, clip_factor};
  }
  BARESTEP_HD void operator()(const RateScalars& s, float grad, float& weight, float* state) const {
    grad = decayed_grad(weight_decay, grad * s.clip, weight);
    state[0] = std::fma(one_minus_alpha * grad, grad, state[0] * alpha);
    const float divisor = std::sqrt(state[0]) + eps;
    if constexpr (kMomentum) {
      state[1] = state[1] * momentum + grad / divisor;
      weight = std::fma(state[1], s.scale, weight);
    } else {
      weight = weight + s.scale * grad / divisor;
    }
  }
};

/// One step of torch.optim.Adagrad on one weight (torch/optim/adagrad.py, _single_tensor_adagrad,
/// without decay of the learning rate).
struct AdagradRule {
  static constexpr int kState = 1;
  float eps, weight_decay;

  explicit AdagradRule(const AdagradStep& step)
      : eps(static_cast<float>(step.eps)), weight_decay(static_cast<float>(step.weight_decay)) {}

  BARESTEP_HD RateScalars at_step(const float* scalars, const float* clip_factor) const {
    return {scalars, clip_factor};
  }
  BARESTEP_HD void operator()(const RateScalars& s, float grad, float& weight, float* state) const {
    grad = decayed_grad(weight_decay, grad * s.clip, weight);
    state[0] = std::fma(grad, grad, state[0]);
    weight = weight + s.scale * grad / (std::sqrt(state[0]) + eps);
  }
};

/// Lion's values that change from step to step: -lr, the factor of weight decay and the factor of
/// clipping.
struct LionScalars {
  float scale, shrink, clip;
};

struct LionRule {
  static constexpr int kState = 1;
  float beta1, one_minus_beta1, beta2, one_minus_beta2;

  explicit LionRule(const LionStep& step)
      : beta1(static_cast<float>(step.beta1)),
        one_minus_beta1(static_cast<float>(1.0 - step.beta1)),
        beta2(static_cast<float>(step.beta2)),
        one_minus_beta2(static_cast<float>(1.0 - step.beta2)) {}

  BARESTEP_HD LionScalars at_step(const float* scalars, const float* clip_factor) const {
    return {scalars[0], scalars[1], clip_factor == nullptr ? 1 : *clip_factor};
  }
  BARESTEP_HD void operator()(const LionScalars& s, float grad, float& weight, float* state) const {
    grad *= s.clip;
    const float mean = std::fma(grad, one_minus_beta1, state[0] * beta1);
    // If the mean is NaN, so is the step.
    const float sign = mean > 0.0F ? 1.0F : mean < 0.0F ? -1.0F : mean;
    weight = std::fma(sign, s.scale, weight * s.shrink);
    state[0] = std::fma(grad, one_minus_beta2, state[0] * beta2);
  }
};

/// Calls use(rule) for a step.
template <class Use>
auto with_rule(const AdamStep& step, const Use& use) {
  const AdamConstants constants(step);
  return step.amsgrad ? use(AdamRule<true>{constants}) : use(AdamRule<false>{constants});
}

template <class Use>
auto with_rule(const SgdStep& step, const Use& use) {
  const SgdConstants constants(step);
  return step.momentum > 0 ? use(SgdRule<true>{constants}) : use(SgdRule<false>{constants});
}

template <class Use>
auto with_rule(const RmsPropStep& step, const Use& use) {
  return step.momentum > 0 ? use(RmsPropRule<true>(step)) : use(RmsPropRule<false>(step));
}

template <class Use>
auto with_rule(const AdagradStep& step, const Use& use) {
  return use(AdagradRule(step));
}

template <class Use>
auto with_rule(const LionStep& step, const Use& use) {
  return use(LionRule(step));
}

template <class Use>
auto with_rule(const OptimizerStep& step, const Use& use) {
  return std::visit([&](const auto& each) { return with_rule(each, use); }, step);
}

/// The factor that limits the gradients' norm to `max_norm`; `squares` is the sum of their squares
/// (torch/nn/utils/clip_grad.py). NaN passes through.
BARESTEP_HD inline float clip_factor(double max_norm, double squares) {
  const double factor = max_norm / (std::sqrt(squares) + 1e-6);
  return factor > 1 ? 1.0F : static_cast<float>(factor);
}

/// One term of the squared norm of a layer's gradients; see GramSquares.
BARESTEP_HD inline double gram_term(float gram_y, float gram_x) {
  return static_cast<double>(gram_y) * (static_cast<double>(gram_x) + 1);
}

/// Maps a float to an integer of the same order. NaN sorts beyond infinity, on the side of its
/// sign, so the extremes of an array show whether it contains one.
BARESTEP_HD inline std::int32_t order_of(float x) {
  const auto bits = std::bit_cast<std::int32_t>(x);
  return bits ^ (bits < 0 ? INT32_MAX : 0);
}
BARESTEP_HD inline float float_of_order(std::int32_t order) {
  return std::bit_cast<float>(order ^ (order < 0 ? INT32_MAX : 0));
}

/// order_of(|x|)
BARESTEP_HD inline std::int32_t order_of_magnitude(float x) {
  return std::bit_cast<std::int32_t>(x) & INT32_MAX;
}

}  // namespace barestep
