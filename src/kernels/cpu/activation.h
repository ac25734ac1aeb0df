// Activations of runs of numbers on the CPU: GELU's formula by vector kernels, the others number by
// number.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/vector_kernels.h"
#include "kernels/loop_ops.h"

namespace barestep {

/// Numbers that are widened to fp32 at a time.
constexpr std::int64_t kActivationChunk = 512;

template <class Formula>
inline constexpr bool kIsGelu = std::is_same_v<Formula, ActivationFormula<Activation::kGelu>>;

/// Calls element(first + i, x(i)) for i in [0, n).
template <class Formula, class Number, class Input>
void activate_run(const ActivationElement<Formula, Number>& element, std::int64_t first,
                  std::int64_t n, const Input& x) {
  if constexpr (kIsGelu<Formula>) {
    float chunk[static_cast<std::size_t>(kActivationChunk)];
    for (std::int64_t begin = 0; begin < n; begin += kActivationChunk) {
      const std::int64_t count = std::min(kActivationChunk, n - begin);
      Number* const values = element.values + first + begin;
      for (std::int64_t i = 0; i < count; ++i) {
        const auto input = rounded<Number>(x(begin + i));
        if (element.keeps_input()) element.pre_activation[first + begin + i] = input;
        chunk[i] = float_of(input);
      }
      vector_kernels().gelu(chunk, count);
      for (std::int64_t i = 0; i < count; ++i) values[i] = rounded<Number>(chunk[i]);
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) element(first + i, x(i));
  }
}

/// Calls element(i) for i in [first, first + n).
template <class Formula, class Number>
void activation_grad_run(const ActivationGradElement<Formula, Number>& element, std::int64_t first,
                         std::int64_t n) {
  if constexpr (kIsGelu<Formula>) {
    float grads[static_cast<std::size_t>(kActivationChunk)];
    float from[static_cast<std::size_t>(kActivationChunk)];
    for (std::int64_t begin = first; begin < first + n; begin += kActivationChunk) {
      const std::int64_t count = std::min(kActivationChunk, first + n - begin);
      for (std::int64_t i = 0; i < count; ++i) {
        grads[i] = float_of(element.grad[begin + i]);
        from[i] = float_of(element.from[begin + i]);
      }
      vector_kernels().gelu_grad(grads, from, count);
      for (std::int64_t i = 0; i < count; ++i) element.grad[begin + i] = rounded<Number>(grads[i]);
    }
  } else {
    for (std::int64_t i = first; i < first + n; ++i) element(i);
  }
}

}  // namespace barestep
