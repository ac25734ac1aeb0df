// Activations of runs of numbers on the CPU: GELU's formula by vector kernels, the others number by
// number.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/linear_adam_kernel.h"
#include "kernels/loop_ops.h"

namespace barestep {

/// In place: values[i] becomes its GELU; grads[i] becomes grads[i] times GELU's slope at from[i].
/// All kernels compute the bits of the formula.
struct GeluKernel {
  void (*value)(float* values, std::int64_t n) = nullptr;
  void (*grad)(float* grads, const float* from, std::int64_t n) = nullptr;
};

/// The fastest kernel that this CPU can run, limited to `max`.
GeluKernel gelu_kernel(LinearAdamIsa max = LinearAdamIsa::kAvx512);

/// In plain C++, for any processor.
GeluKernel plain_gelu_kernel();

/// Kernels for x86, compiled for instructions that not every processor has.
GeluKernel avx2_gelu_kernel();
GeluKernel avx512_gelu_kernel();

/// The fastest one, chosen once.
const GeluKernel& fastest_gelu_kernel();

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
      fastest_gelu_kernel().value(chunk, count);
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
      fastest_gelu_kernel().grad(grads, from, count);
      for (std::int64_t i = 0; i < count; ++i) element.grad[begin + i] = rounded<Number>(grads[i]);
    }
  } else {
    for (std::int64_t i = first; i < first + n; ++i) element(i);
  }
}

/// The kernels for vectors of any length; each source of vector_*.cpp has its own instantiation.
template <class Vec>
class GeluLoops {
 public:
  static GeluKernel kernel() { return {value, grad}; }

 private:
  using Formula = ActivationFormula<Activation::kGelu>;
  static constexpr std::int64_t kWidth = Vec::kWidth;

  static void value(float* values, std::int64_t n) {
    std::int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) Formula::of(Vec::load(values + i)).store(values + i);
    if (i < n) Formula::of(Vec::load_part(values + i, n - i)).store_part(values + i, n - i);
  }

  static void grad(float* grads, const float* from, std::int64_t n) {
    std::int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) {
      Formula::grad_of(Vec::load(grads + i), Vec::load(from + i)).store(grads + i);
    }
    if (i == n) return;
    Formula::grad_of(Vec::load_part(grads + i, n - i), Vec::load_part(from + i, n - i))
        .store_part(grads + i, n - i);
  }
};

}  // namespace barestep
