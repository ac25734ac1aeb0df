// The work of an op on one element or one row; a device decides which thread does it.
//
// Each is a plain struct of addresses and constants that is called with an index. Elements and rows
// are independent of each other, so any split gives the same bits.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/addresses.h"
#include "core/philox.h"
#include "core/tensor.h"
#include "kernels/formulas.h"
#include "kernels/host_device.h"

namespace barestep {

/// values[i] = the activation of x. x is rounded first, and stored if the gradient is computed from
/// it.
template <class Formula, class Number = float>
struct ActivationElement {
  Number* values;
  Number* pre_activation;  // null: not stored

  BARESTEP_HD void operator()(std::int64_t i, float x) const {
    const auto input = rounded<Number>(x);
    if (keeps_input()) pre_activation[i] = input;
    values[i] = of(input);
  }
  [[nodiscard]] BARESTEP_HD static Number of(Number input) {
    return rounded<Number>(Formula::value(float_of(input)));
  }
  [[nodiscard]] BARESTEP_HD bool keeps_input() const {
    return kGradFromInput<Formula> && pre_activation != nullptr;
  }
};

/// values += bias, then the activation.
template <class Formula, class Number = float>
struct BiasActivationElement {
  ActivationElement<Formula, Number> activation;
  const Number* bias;
  std::int64_t cols;

  BARESTEP_HD void operator()(std::int64_t row, std::int64_t col) const {
    const std::int64_t i = row * cols + col;
    activation(i, float_of(activation.values[i]) + float_of(bias[col]));
  }
};

/// The activation of numbers in memory, in place.
template <class Formula, class Number>
struct ActivateElement {
  ActivationElement<Formula, Number> activation;

  BARESTEP_HD void operator()(std::int64_t i) const {
    activation(i, float_of(activation.values[i]));
  }
};

template <class Formula, class Number>
struct ActivationGradElement {
  Number* grad;
  const Number* from;

  ActivationGradElement(const ActivationGrad& op, const Addresses& addresses)
      : grad(addresses.at<Number>(op.grad)), from(addresses.at<Number>(op.from)) {}

  BARESTEP_HD void operator()(std::int64_t i) const { grad[i] = of(grad[i], from[i]); }
  [[nodiscard]] BARESTEP_HD static Number of(Number of_output, Number at) {
    if constexpr (requires { Formula::grad(of_output, at); }) {
      return Formula::grad(of_output, at);
    } else {
      return rounded<Number>(Formula::grad(float_of(of_output), float_of(at)));
    }
  }
};

/// The numbers of a row that are drawn together: four for each of kLanes counters, from `group` on.
template <class Number>
struct DropoutElement {
  Number* values;
  const std::int32_t* step;
  std::int64_t cols, groups, first_row, row_stride, rows_per_sample;
  std::array<std::uint32_t, 2> key;
  std::uint32_t layer;
  std::uint32_t first_kept;  // smallest word whose number is kept
  float scale;               // factor of the kept numbers

  DropoutElement(const Dropout& op, const Addresses& addresses)
      : values(addresses.at<Number>(op.values)),
        step(addresses.at<std::int32_t>(op.step)),
        cols(op.values.cols),
        groups((op.values.cols + 3) / 4),
        first_row(op.first_row),
        row_stride(op.row_stride),
        rows_per_sample(op.rows_per_sample),
        key{low_word(op.seed), high_word(op.seed)},
        layer(static_cast<std::uint32_t>(op.layer)),
        first_kept(static_cast<std::uint32_t>(op.rate * 0x1p32)),
        scale(static_cast<float>(1 / (1 - op.rate))) {}

  /// The number that decides a row's masks, whichever rank computes it.
  [[nodiscard]] BARESTEP_HD std::uint32_t number_of(std::int64_t row) const {
    if (rows_per_sample == 1) return static_cast<std::uint32_t>(first_row + row * row_stride);
    const std::int64_t sample = first_row + row / rows_per_sample * row_stride;
    return static_cast<std::uint32_t>(sample * rows_per_sample + row % rows_per_sample);
  }

  /// The words of kLanes groups: word w of lane l belongs to column w * groups + group + l.
  template <std::size_t kLanes>
  [[nodiscard]] BARESTEP_HD PhiloxLanes<kLanes> draw(std::int64_t row, std::int64_t group) const {
    PhiloxLanes<kLanes> words;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      words[0][lane] = static_cast<std::uint32_t>(group) + static_cast<std::uint32_t>(lane);
      words[1][lane] = number_of(row);
      words[2][lane] = layer;
      words[3][lane] = static_cast<std::uint32_t>(*step);
    }
    philox4x32_10(words, key);
    return words;
  }

  /// PyTorch multiplies too, so NaN and infinity are not replaced by 0.
  [[nodiscard]] BARESTEP_HD static Number of(Number number, bool kept, float factor) {
    return rounded<Number>(float_of(number) * (kept ? factor : 0.0F));
  }

  template <std::size_t kLanes = 1>
  BARESTEP_HD void operator()(std::int64_t row, std::int64_t group) const {
    const PhiloxLanes<kLanes> words = draw<kLanes>(row, group);
    // Locals: the compiler has to assume that members overlap the numbers written, and would then
    // not vectorize the loop.
    Number* const numbers = values + row * cols;
    const std::uint32_t min = first_kept;
    const float factor = scale;
    for (std::int64_t word = 0; word < 4; ++word) {
      const std::int64_t col = word * groups + group;
      const std::int64_t end =
          std::min(std::min((word + 1) * groups, cols) - col, static_cast<std::int64_t>(kLanes));
      for (std::int64_t lane = 0; lane < end; ++lane) {
        const std::uint32_t drawn =
            words[static_cast<std::size_t>(word)][static_cast<std::size_t>(lane)];
        numbers[col + lane] = of(numbers[col + lane], drawn >= min, factor);
      }
    }
  }
};

/// The number at `at`, or 1 if it is null.
BARESTEP_HD inline float factor_at(const float* at) {
  return at == nullptr ? 1.0F : *at;
}

/// One number of a pointwise loss: operator() writes its gradient, value(i) returns its term. The
/// gradient is rounded before the activation's derivative multiplies it, as if two ops did so.
template <class Formula, class Number, class OfActivation = ActivationFormula<Activation::kNone>>
struct LossElement {
  using Value = Number;

  Number* grad;
  const Number* output;
  const typename Formula::Target* target;
  const float* scale;  // may be null
  float factor;

  LossElement() = default;
  LossElement(const PointwiseLoss& op, const Addresses& addresses)
      : grad(addresses.at<Number>(op.grad)),
        output(addresses.at<Number>(op.output)),
        target(addresses.at<typename Formula::Target>(op.target)),
        scale(op.scale ? addresses.at(*op.scale) : nullptr),
        factor(Formula::factor(op.count)) {}

  BARESTEP_HD void operator()(std::int64_t i) const { grad[i] = grad_of(output[i], target[i]); }
  [[nodiscard]] BARESTEP_HD Number grad_of(Number at, typename Formula::Target expected) const {
    const float of_loss = Formula::grad(factor, float_of(at), expected);
    const auto of_output = rounded<Number>(of_loss * factor_at(scale));
    return rounded<Number>(OfActivation::grad(float_of(of_output), float_of(at)));
  }
  [[nodiscard]] BARESTEP_HD float value(std::int64_t i) const {
    return value_of(output[i], target[i]);
  }
  [[nodiscard]] BARESTEP_HD static float value_of(Number at, typename Formula::Target expected) {
    return Formula::value(float_of(at), expected);
  }
};

/// Calls use(element) for the op's loss, numbers and activation.
template <class Use>
auto with_loss_element(const PointwiseLoss& op, const Addresses& addresses, const Use& use) {
  return with_loss(op.kind, [&]<class Formula>(Formula) {
    return with_number(op.output.dtype, [&]<class Number>(Number) {
      if (op.activation == Activation::kNone) {
        return use(LossElement<Formula, Number>(op, addresses));
      }
      using Relu = ActivationFormula<Activation::kRelu>;
      return use(LossElement<Formula, Number, Relu>(op, addresses));
    });
  });
}

/// The sum of a number and one that is widened.
template <class Number>
struct AddElement {
  float* out;
  const float* a;
  const Number* b;

  AddElement(const Add& op, const Addresses& addresses)
      : out(addresses.at(op.out)), a(addresses.at(op.a)), b(addresses.at<Number>(op.b)) {}

  BARESTEP_HD void operator()(std::int64_t i) const { out[i] = a[i] + float_of(b[i]); }
};

/// The addresses of a LayerNorm, and what it does with a number of a row once the row's mean and
/// rstd are known.
template <class Number>
struct LayerNormElement {
  Number* y;
  float* means;
  float* rstds;
  const float* x;
  const float* weight;
  const float* bias;
  std::int64_t rows, cols;

  LayerNormElement(const LayerNorm& op, const Addresses& addresses)
      : y(addresses.at<Number>(op.y)),
        means(addresses.at(op.mean)),
        rstds(addresses.at(op.rstd)),
        x(addresses.at(op.x)),
        weight(addresses.at(op.weight)),
        bias(addresses.at(op.bias)),
        rows(op.x.rows),
        cols(op.x.cols) {}

  BARESTEP_HD void operator()(std::int64_t row, std::int64_t col, float mean, float rstd) const {
    const std::int64_t i = row * cols + col;
    y[i] = rounded<Number>(layer_norm(normalized(x[i], mean, rstd), weight[col], bias[col]));
  }
};

/// The same for the gradients of a LayerNorm.
template <class Number>
struct LayerNormGradElement {
  float* grad_x;  // may be null
  const Number* grad_y;
  const float* x;
  const float* means;
  const float* rstds;
  const float* weight;
  std::int64_t rows, cols;

  LayerNormGradElement(const LayerNormGrad& op, const Addresses& addresses)
      : grad_x(op.grad_x ? addresses.at(*op.grad_x) : nullptr),
        grad_y(addresses.at<Number>(op.grad_y)),
        x(addresses.at(op.x)),
        means(addresses.at(op.mean)),
        rstds(addresses.at(op.rstd)),
        weight(addresses.at(op.weight)),
        rows(op.x.rows),
        cols(op.x.cols) {}

  /// The terms of the bias's and the weight's gradient.
  [[nodiscard]] BARESTEP_HD float bias_term(std::int64_t i) const { return float_of(grad_y[i]); }
  [[nodiscard]] BARESTEP_HD float weight_term(std::int64_t row, std::int64_t i) const {
    return float_of(grad_y[i]) * normalized(x[i], means[row], rstds[row]);
  }

  /// The gradient of normalized x, and its product with that.
  [[nodiscard]] BARESTEP_HD float scaled_grad(std::int64_t i, std::int64_t col) const {
    return float_of(grad_y[i]) * weight[col];
  }
  [[nodiscard]] BARESTEP_HD float projected_grad(std::int64_t row, std::int64_t i,
                                                 std::int64_t col) const {
    return scaled_grad(i, col) * normalized(x[i], means[row], rstds[row]);
  }
  /// Adds to grad_x, from the means of the row's scaled and projected gradients.
  BARESTEP_HD void operator()(std::int64_t row, std::int64_t col, float scaled,
                              float projected) const {
    const std::int64_t i = row * cols + col;
    const float h = normalized(x[i], means[row], rstds[row]);
    grad_x[i] += rstds[row] * (scaled_grad(i, col) - scaled - h * projected);
  }
};

/// One array for each number of an optimizer's state.
template <class Rule>
struct StateArrays {
  static constexpr std::size_t kLength =
      Rule::kState == 0 ? 1 : static_cast<std::size_t>(Rule::kState);  // arrays need a length > 0
  float* arrays[kLength];
};

template <class Rule>
StateArrays<Rule> arrays_of(const std::vector<Tensor>& state, const Addresses& addresses) {
  StateArrays<Rule> arrays{};
  for (std::size_t k = 0; k < state.size(); ++k) arrays.arrays[k] = addresses.at(state[k]);
  return arrays;
}

/// What an update needs beyond its step: rounded weights, clipping and loss scaling.
template <class Number>
struct UpdateCommons {
  Number* rounded_weights;  // may be null
  const float* clip;        // null without clipping
  const float* scale;       // like all below, null without loss scaling
  const float* found_inf;
  const std::int32_t* updates;
  const std::int32_t* first_update;
  std::int64_t scalars_each;  // numbers per row of scalars

  UpdateCommons(const OptimizerUpdate& op, const Addresses& addresses)
      : rounded_weights(op.rounded ? addresses.at<Number>(*op.rounded) : nullptr),
        clip(op.clip ? addresses.at(*op.clip) : nullptr),
        scale(op.loss_scale ? addresses.at(op.loss_scale->scale) : nullptr),
        found_inf(op.loss_scale ? addresses.at(op.loss_scale->found_inf) : nullptr),
        updates(op.loss_scale ? addresses.at<std::int32_t>(op.loss_scale->updates) : nullptr),
        first_update(op.loss_scale ? addresses.at<std::int32_t>(*op.first_update) : nullptr),
        scalars_each(op.scalars.cols) {}

  /// Whether the step leaves the weights unchanged.
  [[nodiscard]] BARESTEP_HD bool skips() const { return scale != nullptr && *found_inf > 0.0F; }
  /// The row of scalars for this update.
  [[nodiscard]] BARESTEP_HD const float* row_of(const float* scalars) const {
    return scale == nullptr ? scalars : scalars + (*updates - *first_update) * scalars_each;
  }
  /// The factor that gradients are multiplied by before anything else.
  [[nodiscard]] BARESTEP_HD float unscale() const { return inverse_scale(scale); }
};

/// An optimizer's step over flat buffers. Gradients have the type Grad; rounded weights, if any,
/// have the type Number.
template <class Rule, class Grad, class Number>
struct UpdateElement {
  float* weights;
  const Grad* grads;
  StateArrays<Rule> state;
  Rule rule;
  decltype(rule.at_step(nullptr, nullptr)) scalars;
  Number* rounded_weights;
  float unscale;

  BARESTEP_HD void operator()(std::int64_t i) const {
    float kept[StateArrays<Rule>::kLength];
    for (int k = 0; k < Rule::kState; ++k) kept[k] = state.arrays[k][i];
    float weight = weights[i];
    rule(scalars, float_of(grads[i]) * unscale, weight, kept);
    weights[i] = weight;
    for (int k = 0; k < Rule::kState; ++k) state.arrays[k][i] = kept[k];
    if constexpr (!std::is_same_v<Number, float>) rounded_weights[i] = rounded<Number>(weight);
  }
};

/// to = scale * from + beta * to.
template <class To, class From>
struct CastElement {
  To* to;
  const From* from;
  float scale = 1, beta = 0;

  BARESTEP_HD CastElement(To* into, const From* source) : to(into), from(source) {}
  CastElement(const Cast& op, const Addresses& addresses)
      : to(addresses.at<To>(op.to)),
        from(addresses.at<From>(op.from)),
        scale(op.scale),
        beta(op.beta) {}

  BARESTEP_HD void operator()(std::int64_t i) const {
    to[i] = of(from[i], beta == 0.0F ? To{} : to[i]);
  }
  /// `old` is used only if beta is not 0.
  [[nodiscard]] BARESTEP_HD To of(From number, To old) const {
    const float scaled = scale * float_of(number);
    return rounded<To>(beta == 0.0F ? scaled : scaled + beta * float_of(old));
  }
};

/// Calls use(element) for a cast between float and a 16-bit type.
template <class Use>
auto with_cast(const Cast& op, const Addresses& addresses, const Use& use) {
  if (op.to.dtype == DType::kBF16) return use(CastElement<Bf16, float>(op, addresses));
  if (op.to.dtype == DType::kF16) return use(CastElement<F16, float>(op, addresses));
  if (op.from.dtype == DType::kBF16) return use(CastElement<float, Bf16>(op, addresses));
  return use(CastElement<float, F16>(op, addresses));
}

/// Calls use() with a number of the gradients' type and one of the rounded weights' type, which is
/// float if there are none.
template <class Use>
auto with_update_numbers(const OptimizerUpdate& op, const Use& use) {
  if (!op.rounded) return use(float{}, float{});
  return with_number(op.rounded->dtype, [&]<class Number>(Number number) {
    return op.grads.dtype == DType::kF32 ? use(float{}, number) : use(number, number);
  });
}

/// One term of SumSquares.
template <class Number>
struct SquareTerm {
  const Number* in;
  const float* scale;  // may be null

  SquareTerm(const SumSquares& op, const Addresses& addresses)
      : in(addresses.at<Number>(op.in)), scale(op.scale ? addresses.at(*op.scale) : nullptr) {}

  BARESTEP_HD double operator()(std::int64_t i) const {
    const auto number = static_cast<double>(float_of(in[i]) * inverse_scale(scale));
    return number * number;
  }
};

/// One term of GramSquares.
struct GramTerm {
  const float* gram_y;
  const float* gram_x;

  BARESTEP_HD double operator()(std::int64_t i) const { return gram_term(gram_y[i], gram_x[i]); }
};

/// Softmax cross-entropy of one row of `cols` logits: writes the row of grad, scaled by 1 / count,
/// and returns the row's loss. The largest logit is subtracted first, so no exponential overflows.
template <class Number>
struct CrossEntropyRow {
  static constexpr bool kKeepsExponentials = std::is_same_v<Number, float>;

  Number* grad;
  const Number* logits;
  const std::int32_t* labels;
  const float* scale;  // of the gradient; may be null
  std::int64_t cols;
  std::int64_t count;
  LabelWeights weights{0, 1};

  CrossEntropyRow() = default;
  CrossEntropyRow(const CrossEntropy& op, const Addresses& addresses)
      : grad(addresses.at<Number>(op.grad)),
        logits(addresses.at<Number>(op.logits)),
        labels(addresses.at<std::int32_t>(op.labels)),
        scale(op.scale ? addresses.at(*op.scale) : nullptr),
        cols(op.logits.cols),
        count(op.count),
        weights(op.smoothing, op.logits.cols) {}

  BARESTEP_HD float operator()(std::int64_t row) const {
    const Number* x = logits + row * cols;
    float largest = float_of(x[0]);
    for (std::int64_t j = 1; j < cols; ++j) {
      largest = is_larger(float_of(x[j]), largest) ? float_of(x[j]) : largest;
    }
    float sum = 0;
    float shifted = 0;
    for (std::int64_t j = 0; j < cols; ++j) {
      sum += keep_exponential(row * cols + j, largest);
      shifted += float_of(x[j]) - largest;
    }
    const std::int64_t label = labels[row];
    for (std::int64_t j = 0; j < cols; ++j) {
      write_grad(row * cols + j, largest, sum, j == label);
    }
    return cross_entropy_loss(float_of(x[label]), largest, sum, weights, cols, shifted);
  }

  /// The exponential of a logit after subtracting `largest`. If the gradient is fp32, stores it
  /// there for write_grad(). 16 bits would round it, so write_grad() then computes it again.
  [[nodiscard]] BARESTEP_HD float keep_exponential(std::int64_t i, float largest) const {
    const float kept = exponential(logits[i], largest);
    if constexpr (kKeepsExponentials) grad[i] = kept;
    return kept;
  }
  [[nodiscard]] BARESTEP_HD static float exponential(Number logit, float largest) {
    return barestep::exponential(float_of(logit) - largest);
  }

  BARESTEP_HD void write_grad(std::int64_t i, float largest, float sum, bool is_label) const {
    float kept = 0;
    if constexpr (kKeepsExponentials) {
      kept = grad[i];
    } else {
      kept = exponential(logits[i], largest);
    }
    grad[i] = grad_of(kept, sum, is_label);
  }

  [[nodiscard]] BARESTEP_HD Number grad_of(float of_logit, float sum, bool is_label) const {
    const float of_loss =
        cross_entropy_grad(of_logit, sum, is_label, weights, static_cast<float>(count));
    return rounded<Number>(of_loss * factor_at(scale));
  }
};

/// True if the row's class is the label; see CountCorrect.
template <class Number>
struct CorrectRow {
  const Number* logits;
  const std::int32_t* labels;
  std::int32_t* classes;  // may be null
  std::int64_t cols;
  bool binary;

  CorrectRow(const CountCorrect& op, const Addresses& addresses)
      : logits(addresses.at<Number>(op.logits)),
        labels(addresses.at<std::int32_t>(op.labels)),
        classes(op.classes ? addresses.at<std::int32_t>(*op.classes) : nullptr),
        cols(op.logits.cols),
        binary(op.binary) {}

  BARESTEP_HD bool operator()(std::int64_t row) const {
    const Number* x = logits + row * cols;
    std::int64_t best = 0;
    for (std::int64_t j = 1; j < cols; ++j) {
      best = is_larger(float_of(x[j]), float_of(x[best])) ? j : best;
    }
    return take(row, best);
  }

  /// Stores the row's class; its largest logit has the index `best`.
  [[nodiscard]] BARESTEP_HD bool take(std::int64_t row, std::int64_t best) const {
    const std::int64_t found = binary ? (float_of(logits[row]) > 0.0F ? 1 : 0) : best;
    if (classes != nullptr) classes[row] = static_cast<std::int32_t>(found);
    return found == labels[row];
  }
};

}  // namespace barestep
