// The table of vector kernels for one type of vectors. Each source of vector_*.cpp includes this
// for the instruction set it is compiled for.
#pragma once

#include "kernels/cpu/chain_loops.h"
#include "kernels/cpu/softmax_loops.h"
#include "kernels/cpu/vector_kernels.h"

namespace barestep {

template <class Vec>
struct GeluLoops {
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

template <class Vec>
constexpr VectorKernels kernels_of(std::string_view name) {
  return {.name = name,
          .panel = Vec::kVectors * Vec::kWidth,
          .pack = PackLoops<Vec>::pack,
          .multiply = multiply_chains<Vec>,
          .multiply_plainly = multiply_plainly<Vec>,
          .update = LinearAdamLoop<Vec>::update,
          .softmax = SoftmaxLoops<Vec>::softmax,
          .softmax_grad = SoftmaxLoops<Vec>::softmax_grad,
          .softmax_row = SoftmaxLoops<Vec>::softmax_row,
          .gelu = GeluLoops<Vec>::value,
          .gelu_grad = GeluLoops<Vec>::grad};
}

}  // namespace barestep
