// A linear layer's step of Adam, its gradients never stored: a matrix product in fp32, with an
// epilogue that updates the weights under each of its tiles.
//
// A product over a batch of 64 is over before the memory has brought weights and moments, so
// nothing is pipelined: two blocks on a multiprocessor hide each other's waits.
#pragma once

#include "kernels/cuda/grid.cuh"
#include "kernels/formulas.h"

namespace barestep {

/// Rows and columns of the weight that a block updates, and rows of the factors it takes at a time.
constexpr int kUpdateRows = 64;
constexpr int kUpdateCols = 128;
constexpr int kUpdateDepth = 16;

/// What a thread updates: kThreadRows rows, and of each kThreadGroups times four columns.
constexpr int kThreadRows = 4;
constexpr int kThreadGroups = 2;
constexpr int kThreadsAcross = kUpdateCols / (4 * kThreadGroups);
static_assert(kThreadsAcross * (kUpdateRows / kThreadRows) == kBlockThreads);

/// A LinearAdam with its addresses: `out` x `in` weights, `n` rows of grad_y and x.
struct LinearAdamArrays {
  std::int64_t out, in, n;
  float *weight, *weight_moments1, *weight_moments2;
  float *bias, *bias_moments1, *bias_moments2;
  const float *grad_y, *x, *scalars, *clip;
};

/// values[k][col] = rows row .. row + kUpdateDepth - 1 of kCols columns from `first`; 0 behind the
/// ends.
template <std::size_t kSize>
__device__ void load_factor(float (&values)[kUpdateDepth][kSize], const float* from,
                            std::int64_t row, std::int64_t rows, std::int64_t first,
                            std::int64_t cols) {
  constexpr int kCols = static_cast<int>(kSize);
  for (int i = static_cast<int>(threadIdx.x); i < kUpdateDepth * kCols; i += kBlockThreads) {
    const std::int64_t k = row + i / kCols;
    const std::int64_t col = first + i % kCols;
    values[i / kCols][i % kCols] = k < rows && col < cols ? from[k * cols + col] : 0;
  }
}

/// Four weights beside each other, of which `count` are there.
template <bool kVectors>
__device__ void update_four(const LinearAdamArrays& a, const AdamConstants& constants,
                            const AdamScalars& step, std::int64_t at, std::int64_t count,
                            const float (&grads)[4]) {
  if constexpr (kVectors) {
    auto* const weights = reinterpret_cast<float4*>(a.weight + at);
    auto* const moments1 = reinterpret_cast<float4*>(a.weight_moments1 + at);
    auto* const moments2 = reinterpret_cast<float4*>(a.weight_moments2 + at);
    float4 w = *weights;
    float4 m = __ldcs(moments1);
    float4 v = __ldcs(moments2);
    adam_step(constants, step, grads[0], w.x, m.x, v.x);
    adam_step(constants, step, grads[1], w.y, m.y, v.y);
    adam_step(constants, step, grads[2], w.z, m.z, v.z);
    adam_step(constants, step, grads[3], w.w, m.w, v.w);
    *weights = w;
    __stcs(moments1, m);
    __stcs(moments2, v);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j >= count) continue;
      adam_step(constants, step, grads[j], a.weight[at + j], a.weight_moments1[at + j],
                a.weight_moments2[at + j]);
    }
  }
}

/// Grid: the tiles of the weight, row by row. The blocks of a row's first tile update its biases.
/// Every sum is over the rows of the factors in their order. With kVectors the columns are a
/// multiple of four and all arrays of their shape lie on 16 bytes.
template <bool kVectors>
__global__ void __launch_bounds__(kBlockThreads, 2)
    linear_adam(LinearAdamArrays a, AdamConstants constants) {
  __shared__ float grad_y[kUpdateDepth][kUpdateRows];
  __shared__ float x[kUpdateDepth][kUpdateCols];
  const std::int64_t across = (a.in + kUpdateCols - 1) / kUpdateCols;
  const std::int64_t row = std::int64_t{blockIdx.x} / across * kUpdateRows;
  const std::int64_t col = std::int64_t{blockIdx.x} % across * kUpdateCols;
  const int thread = static_cast<int>(threadIdx.x);
  const int own_row = thread / kThreadsAcross * kThreadRows;
  const int own_col = thread % kThreadsAcross * 4;

  float sums[kThreadRows][kThreadGroups][4] = {};
  float bias_sum = 0;
  for (std::int64_t first = 0; first < a.n; first += kUpdateDepth) {
    load_factor(grad_y, a.grad_y, first, a.n, row, a.out);
    load_factor(x, a.x, first, a.n, col, a.in);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kUpdateDepth; ++k) {
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i)
#pragma unroll
        for (int group = 0; group < kThreadGroups; ++group)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            sums[i][group][j] = std::fma(grad_y[k][own_row + i],
                                         x[k][group * (kUpdateCols / kThreadGroups) + own_col + j],
                                         sums[i][group][j]);
      if (col == 0 && thread < kUpdateRows) bias_sum += grad_y[k][thread];
    }
    __syncthreads();
  }

  const AdamScalars step(constants, a.scalars, a.clip);
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
    for (int group = 0; group < kThreadGroups; ++group) {
      const std::int64_t at_row = row + own_row + i;
      const std::int64_t at_col = col + group * (kUpdateCols / kThreadGroups) + own_col;
      if (at_row >= a.out || at_col >= a.in) continue;
      update_four<kVectors>(a, constants, step, at_row * a.in + at_col, a.in - at_col,
                            sums[i][group]);
    }
  }
  if (col != 0 || thread >= kUpdateRows || row + thread >= a.out) return;
  const std::int64_t at = row + thread;
  adam_step(constants, step, bias_sum, a.bias[at], a.bias_moments1[at], a.bias_moments2[at]);
}

}  // namespace barestep
