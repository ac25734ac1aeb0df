// What an op does to one element or to one row; a device decides which thread does it.
//
// Each is a plain struct of addresses and constants, callable with an index. Elements and rows are
// independent of each other, so any split gives the same bits.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/addresses.h"
#include "core/philox.h"
#include "core/tensor.h"
#include "kernels/formulas.h"
#include "kernels/host_device.h"

namespace barestep {

/// values[i] = the activation of x, which is kept where the gradient is found from it.
template <class Formula>
struct ActivationElement {
  float* values;
  float* pre_activation;  // null: nothing is kept

  BARESTEP_HD void operator()(std::int64_t i, float x) const {
    if constexpr (kGradFromInput<Formula>) {
      if (pre_activation != nullptr) pre_activation[i] = x;
    }
    values[i] = Formula::value(x);
  }
};

/// values += bias, then the activation.
template <class Formula>
struct BiasActivationElement {
  ActivationElement<Formula> activation;
  const float* bias;
  std::int64_t cols;

  BARESTEP_HD void operator()(std::int64_t row, std::int64_t col) const {
    const std::int64_t i = row * cols + col;
    activation(i, activation.values[i] + bias[col]);
  }
};

template <class Formula>
struct ActivationGradElement {
  float* grad;
  const float* from;
  float from_scale;

  BARESTEP_HD void operator()(std::int64_t i) const {
    grad[i] = Formula::grad(grad[i], from_scale * from[i]);
  }
};

/// The numbers of a row that are drawn together: four for each of kLanes counters, from `group` on.
struct DropoutElement {
  float* values;
  const std::int32_t* step;
  std::int64_t cols, groups, first_row, row_stride;
  std::array<std::uint32_t, 2> key;
  std::uint32_t layer;
  std::uint32_t first_kept;  // of the words
  float scale;               // of what is kept

  DropoutElement(const Dropout& op, const Addresses& addresses)
      : values(addresses.at(op.values)),
        step(addresses.at<std::int32_t>(op.step)),
        cols(op.values.cols),
        groups((op.values.cols + 3) / 4),
        first_row(op.first_row),
        row_stride(op.row_stride),
        key{low_word(op.seed), high_word(op.seed)},
        layer(static_cast<std::uint32_t>(op.layer)),
        first_kept(static_cast<std::uint32_t>(op.rate * 0x1p32)),
        scale(static_cast<float>(1 / (1 - op.rate))) {}

  template <std::size_t kLanes = 1>
  BARESTEP_HD void operator()(std::int64_t row, std::int64_t group) const {
    PhiloxLanes<kLanes> words;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      words[0][lane] = static_cast<std::uint32_t>(group) + static_cast<std::uint32_t>(lane);
      words[1][lane] = static_cast<std::uint32_t>(first_row + row * row_stride);
      words[2][lane] = layer;
      words[3][lane] = static_cast<std::uint32_t>(*step);
    }
    philox4x32_10(words, key);
    // Locals: members could lie among the numbers written, for all that the compiler knows, and it
    // would make no vectors of the loop.
    float* const numbers = values + row * cols;
    const std::uint32_t least = first_kept;
    const float factor = scale;
    for (std::int64_t word = 0; word < 4; ++word) {
      const std::int64_t col = word * groups + group;
      const std::int64_t end =
          std::min(std::min((word + 1) * groups, cols) - col, static_cast<std::int64_t>(kLanes));
      for (std::int64_t lane = 0; lane < end; ++lane) {
        const std::uint32_t drawn =
            words[static_cast<std::size_t>(word)][static_cast<std::size_t>(lane)];
        // PyTorch multiplies too, so NaN and infinity do not vanish.
        numbers[col + lane] *= drawn < least ? 0.0F : factor;
      }
    }
  }
};

/// A number of a pointwise loss: its gradient by (i), its term by value(i).
template <class Formula>
struct LossElement {
  float* grad;
  const float* output;
  const typename Formula::Target* target;
  float factor;

  LossElement(const PointwiseLoss& op, const Addresses& addresses)
      : grad(addresses.at(op.grad)),
        output(addresses.at(op.output)),
        target(addresses.at<typename Formula::Target>(op.target)),
        factor(Formula::factor(op.count)) {}

  BARESTEP_HD void operator()(std::int64_t i) const {
    grad[i] = Formula::grad(factor, output[i], target[i]);
  }
  [[nodiscard]] BARESTEP_HD float value(std::int64_t i) const {
    return Formula::value(output[i], target[i]);
  }
};

/// An array for each number that an optimizer keeps for each weight.
template <class Rule>
struct StateArrays {
  static constexpr std::size_t kLength =
      Rule::kState == 0 ? 1 : static_cast<std::size_t>(Rule::kState);  // no array has length 0
  float* arrays[kLength];
};

template <class Rule, class Tensors>
StateArrays<Rule> arrays_of(const Tensors& state, const Addresses& addresses) {
  StateArrays<Rule> arrays{};
  for (std::size_t k = 0; k < state.size(); ++k) arrays.arrays[k] = addresses.at(state[k]);
  return arrays;
}

/// An optimizer's step over flat buffers.
template <class Rule>
struct UpdateElement {
  float* weights;
  const float* grads;
  StateArrays<Rule> state;
  Rule rule;
  decltype(rule.at_step(nullptr, nullptr)) scalars;

  BARESTEP_HD void operator()(std::int64_t i) const {
    float kept[StateArrays<Rule>::kLength];
    for (int k = 0; k < Rule::kState; ++k) kept[k] = state.arrays[k][i];
    float weight = weights[i];
    rule(scalars, grads[i], weight, kept);
    weights[i] = weight;
    for (int k = 0; k < Rule::kState; ++k) state.arrays[k][i] = kept[k];
  }
};

struct ToBf16Element {
  Bf16* to;
  const float* from;
  float scale;

  BARESTEP_HD void operator()(std::int64_t i) const { to[i] = bf16_of(scale * from[i]); }
};

struct FromBf16Element {
  float* to;
  const Bf16* from;
  float scale;

  BARESTEP_HD void operator()(std::int64_t i) const { to[i] = scale * float_of(from[i]); }
};

/// A number's part in SumSquares.
struct SquareTerm {
  const float* in;

  BARESTEP_HD double operator()(std::int64_t i) const {
    return static_cast<double>(in[i]) * static_cast<double>(in[i]);
  }
};

/// A pair's part in GramSquares.
struct GramTerm {
  const float* gram_y;
  const float* gram_x;

  BARESTEP_HD double operator()(std::int64_t i) const { return gram_term(gram_y[i], gram_x[i]); }
};

/// Softmax cross-entropy of one row of `cols` logits: writes the row of grad, scaled by 1 / count,
/// and returns the row's loss. The largest logit is subtracted first,
/// so that no exponential overflows.
struct CrossEntropyRow {
  float* grad;
  const float* logits;
  const std::int32_t* labels;
  std::int64_t cols;
  std::int64_t count;
  LabelWeights weights;

  CrossEntropyRow(const CrossEntropy& op, const Addresses& addresses)
      : grad(addresses.at(op.grad)),
        logits(addresses.at(op.logits)),
        labels(addresses.at<std::int32_t>(op.labels)),
        cols(op.logits.cols),
        count(op.count),
        weights(op.smoothing, op.logits.cols) {}

  BARESTEP_HD float operator()(std::int64_t row) const {
    const float* x = logits + row * cols;
    float* g = grad + row * cols;
    float largest = x[0];
    for (std::int64_t j = 1; j < cols; ++j) largest = is_larger(x[j], largest) ? x[j] : largest;
    float sum = 0;
    float shifted = 0;
    for (std::int64_t j = 0; j < cols; ++j) {
      g[j] = std::exp(x[j] - largest);
      sum += g[j];
      shifted += x[j] - largest;
    }
    const std::int64_t label = labels[row];
    const auto divisor = static_cast<float>(count);
    for (std::int64_t j = 0; j < cols; ++j)
      g[j] = cross_entropy_grad(g[j], sum, j == label, weights, divisor);
    return cross_entropy_loss(x[label], largest, sum, weights, cols, shifted);
  }
};

/// True when the row's class is the label's; see CountCorrect.
struct CorrectRow {
  const float* logits;
  const std::int32_t* labels;
  std::int32_t* classes;  // or null
  std::int64_t cols;
  bool binary;

  CorrectRow(const CountCorrect& op, const Addresses& addresses)
      : logits(addresses.at(op.logits)),
        labels(addresses.at<std::int32_t>(op.labels)),
        classes(op.classes ? addresses.at<std::int32_t>(*op.classes) : nullptr),
        cols(op.logits.cols),
        binary(op.binary) {}

  BARESTEP_HD bool operator()(std::int64_t row) const {
    const float* x = logits + row * cols;
    std::int64_t best = 0;
    for (std::int64_t j = 1; j < cols; ++j) best = is_larger(x[j], x[best]) ? j : best;
    return take(row, best);
  }

  /// Notes the class of the row, whose largest logit is the `best`th.
  [[nodiscard]] BARESTEP_HD bool take(std::int64_t row, std::int64_t best) const {
    const std::int64_t found = binary ? (logits[row] > 0.0F ? 1 : 0) : best;
    if (classes != nullptr) classes[row] = static_cast<std::int32_t>(found);
    return found == labels[row];
  }
};

/// Numbers that have one scale.
struct QuantizeElement {
  std::int8_t* to;
  const float* from;
  Int8Range range;
  float inverse;

  BARESTEP_HD QuantizeElement(std::int8_t* to_numbers, const float* from_numbers,
                              const Int8Range& int8_range)
      : to(to_numbers), from(from_numbers), range(int8_range), inverse(1.0F / int8_range.scale) {}

  BARESTEP_HD void operator()(std::int64_t i) const { to[i] = range.quantized(from[i], inverse); }
};

/// What becomes of a sum of products in a QuantizedGemm.
template <class Formula>
struct DequantizeElement {
  float* c;
  const float* a_scales;
  const float* b_scales;
  const std::int32_t* b_sums;
  const float* bias;
  const std::int32_t* a_zero_point;  // null: 0
  std::int64_t cols;
  std::int64_t a_step, b_step;  // 0: one scale for all

  DequantizeElement(const QuantizedGemm& op, const Addresses& addresses)
      : c(addresses.at(op.c)),
        a_scales(addresses.at(op.a_scales)),
        b_scales(addresses.at(op.b_scales)),
        b_sums(addresses.at<std::int32_t>(op.b_sums)),
        bias(addresses.at(op.bias)),
        a_zero_point(op.a_zero_point ? addresses.at<std::int32_t>(*op.a_zero_point) : nullptr),
        cols(op.c.cols),
        a_step(op.a_zero_point ? 0 : 1),
        b_step(op.b_scales.cols == 1 ? 0 : 1) {}

  /// `sum` is of the products of `a` and `b` as they are; `offset` was added to each of `a`.
  BARESTEP_HD void operator()(std::int64_t row, std::int64_t col, std::int32_t sum,
                              std::int32_t offset = 0) const {
    const std::int32_t zero = a_zero_point == nullptr ? 0 : *a_zero_point;
    const std::int32_t exact = sum - (zero + offset) * b_sums[col];
    const float scale = a_scales[row * a_step] * b_scales[col * b_step];
    c[row * cols + col] = Formula::value(std::fma(static_cast<float>(exact), scale, bias[col]));
  }
};

}  // namespace barestep
