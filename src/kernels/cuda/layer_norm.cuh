// Kernels of LayerNorm: a warp computes a row, and a block the sums of some columns.
#pragma once

#include "kernels/cuda/reductions.cuh"
#include "kernels/loop_ops.h"

namespace barestep {

/// The mean of term(col) over a row of `cols` numbers, in every lane of the warp. It is double, so
/// that the mean of equal numbers is that number: LayerNorm multiplies what is left of such a row
/// by 316.
template <class Term>
__device__ double mean_of_row(std::int64_t cols, const Term& term) {
  double sum = 0;
  for (std::int64_t col = threadIdx.x % kWarpThreads; col < cols; col += kWarpThreads)
    sum += term(col);
  return warp_sum(sum) / static_cast<double>(cols);
}

template <class Number>
__global__ void __launch_bounds__(kBlockThreads) layer_norm(LayerNormElement<Number> element) {
  begin_kernel();
  each_row_by_a_warp(element.rows, [&](std::int64_t row, std::int64_t lane) {
    const float* const x = element.x + row * element.cols;
    const double exact = mean_of_row(element.cols, [=](std::int64_t col) { return x[col]; });
    const double variance = mean_of_row(element.cols, [=](std::int64_t col) {
      const double deviation = x[col] - exact;
      return deviation * deviation;
    });
    const auto mean = static_cast<float>(exact);
    const float rstd = layer_norm_rstd(variance);
    if (lane == 0) {
      element.means[row] = mean;
      element.rstds[row] = rstd;
    }
    for (std::int64_t col = lane; col < element.cols; col += kWarpThreads)
      element(row, col, mean, rstd);
  });
}

/// Adds to the gradient of x.
template <class Number>
__global__ void __launch_bounds__(kBlockThreads)
    layer_norm_grad(LayerNormGradElement<Number> element) {
  begin_kernel();
  each_row_by_a_warp(element.rows, [&](std::int64_t row, std::int64_t lane) {
    const std::int64_t first = row * element.cols;
    const auto scaled = static_cast<float>(mean_of_row(
        element.cols, [&](std::int64_t col) { return element.scaled_grad(first + col, col); }));
    const auto projected = static_cast<float>(mean_of_row(element.cols, [&](std::int64_t col) {
      return element.projected_grad(row, first + col, col);
    }));
    for (std::int64_t col = lane; col < element.cols; col += kWarpThreads)
      element(row, col, scaled, projected);
  });
}

/// The gradients of weight and bias, in the order of sum_rows. Grid: tiles of kSumThreads columns.
template <class Number>
__global__ void __launch_bounds__(kSumThreads* kSumRows)
    layer_norm_sums(float* grad_weight, float* grad_bias, LayerNormGradElement<Number> element,
                    float beta) {
  begin_kernel();
  const std::int64_t col = first_column<1>();
  float of_weight[1] = {};
  float of_bias[1] = {};
  if (col < element.cols) {
    for (std::int64_t row = threadIdx.y; row < element.rows; row += kSumRows) {
      const std::int64_t i = row * element.cols + col;
      of_weight[0] += element.weight_term(row, i);
      of_bias[0] += element.bias_term(i);
    }
  }
  add_columns(grad_weight, of_weight, element.cols, beta);
  __syncthreads();  // before the second call uses the same shared memory
  add_columns(grad_bias, of_bias, element.cols, beta);
}

}  // namespace barestep
