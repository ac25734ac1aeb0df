// Kernels that add numbers up: column sums, losses, counts. Orders are fixed; there are no atomics.
//
// Sums over everything take two launches: every block writes one partial sum, then one block adds
// those. Losses add float terms in double, so their order hardly shows.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/grid.cuh"
#include "kernels/loop_ops.h"

namespace barestep {

/// Blocks, and so partial sums, at most: what the workspace of a launch holds.
constexpr int kMaxPartials = static_cast<int>(kLaunchWorkspaceBytes / sizeof(double));

constexpr unsigned kAllLanes = 0xffffffffU;

/// out = column sums + beta * out. A thread of the tile adds every kTileRows-th row of its column,
/// then the tile's first row adds those in order. Grid: column tiles.
template <class Out, class In>
__global__ void __launch_bounds__(kBlockThreads)
    sum_rows(Out* out, const In* in, std::int64_t rows, std::int64_t cols, float beta) {
  __shared__ float sums[kTileRows][kTileCols];
  const std::int64_t col = std::int64_t{blockIdx.x} * kTileCols + threadIdx.x;
  float sum = 0;
  if (col < cols) {
    for (std::int64_t row = threadIdx.y; row < rows; row += kTileRows) {
      sum += float_of(in[row * cols + col]);
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || col >= cols) return;
  for (int row = 1; row < kTileRows; ++row) sum += sums[row][threadIdx.x];
  const float old = beta == 0.0F ? 0.0F : float_of(out[col]);
  out[col] = rounded<Out>(accumulate(sum, beta, old));
}

/// The sum over the lanes of a warp, in every lane.
template <class T>
__device__ T warp_sum(T value) {
  for (int step = kWarpThreads / 2; step > 0; step /= 2)
    value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

/// The sum over the threads of a block, in its first thread. Call once in a kernel.
static __device__ double block_sum(double value) {
  __shared__ double warps[kBlockWarps];
  value = warp_sum(value);
  if (threadIdx.x % kWarpThreads == 0) warps[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  if (threadIdx.x != 0) return 0;
  for (int warp = 1; warp < kBlockWarps; ++warp) value += warps[warp];
  return value;
}

/// The sum of the partial sums, in the first thread of the only block.
static __device__ double total(const double* partials, int count) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kBlockThreads) sum += partials[i];
  return block_sum(sum);
}

/// loss = sum of partials / count + beta * loss.
static __global__ void __launch_bounds__(kBlockThreads)
    finish_loss(float* loss, const double* partials, int blocks, std::int64_t count, float beta) {
  const double sum = total(partials, blocks);
  if (threadIdx.x != 0) return;
  *loss = accumulate(static_cast<float>(sum / static_cast<double>(count)), beta, *loss);
}

static __global__ void __launch_bounds__(kBlockThreads)
    finish_count(std::int32_t* out, const double* partials, int blocks) {
  const double sum = total(partials, blocks);
  if (threadIdx.x == 0) *out = static_cast<std::int32_t>(sum);
}

/// Each block's part of the sum of term(i).
template <class Term>
__global__ void __launch_bounds__(kBlockThreads)
    sum_terms(double* partials, std::int64_t n, Term term) {
  double sum = 0;
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) sum += term(i);
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/// By one thread: there is a number for each layer.
static __global__ void find_clip_factor(float* factor, const float* squares, std::int64_t n,
                                        double max_norm) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(squares[i]);
  *factor = clip_factor(max_norm, sum);
}

/// found_inf = 1 where a number is not finite. Many threads may write the same.
template <class Number>
__global__ void __launch_bounds__(kBlockThreads)
    check_finite(std::int64_t n, const Number* in, float* found_inf) {
  bool finite = true;
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) {
    finite = finite && is_finite(float_of(in[i]));
  }
  if (!finite) *found_inf = 1.0F;
}

/// By one thread.
static __global__ void end_loss_scale(UpdateLossScale op, float* scale, const float* found_inf,
                                      std::int32_t* good_steps, std::int32_t* updates) {
  LossScaleNumbers numbers{*scale, *good_steps, *updates};
  update_loss_scale(op, *found_inf > 0.0F, numbers);
  *scale = numbers.scale;
  *good_steps = numbers.good_steps;
  *updates = numbers.updates;
}

/// The gradient, and each block's part of the sum of the terms.
template <class Formula, class Number>
__global__ void __launch_bounds__(kBlockThreads)
    pointwise_loss(double* partials, std::int64_t n, LossElement<Formula, Number> element) {
  double sum = 0;
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) {
    sum += element.value(i);
    element(i);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/// The largest of a row's logits, NaN if there is one, in every lane of the warp.
template <class Number>
__device__ float largest_of_row(const Number* x, std::int64_t cols) {
  float largest = float_of(x[0]);
  for (std::int64_t j = threadIdx.x % kWarpThreads; j < cols; j += kWarpThreads)
    largest = is_larger(float_of(x[j]), largest) ? float_of(x[j]) : largest;
  for (int step = kWarpThreads / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, largest, step);
    largest = is_larger(other, largest) ? other : largest;
  }
  return largest;
}

/// One row by one warp: writes the row of grad, returns the row's loss in every lane.
template <class Number>
__device__ float cross_entropy_row(const CrossEntropyRow<Number>& op, std::int64_t row) {
  const Number* x = op.logits + row * op.cols;
  const std::int64_t lane = threadIdx.x % kWarpThreads;
  const float largest = largest_of_row(x, op.cols);
  float sum = 0;
  float shifted = 0;
  for (std::int64_t j = lane; j < op.cols; j += kWarpThreads) {
    sum += op.keep_exponential(row * op.cols + j, largest);
    shifted += float_of(x[j]) - largest;
  }
  const std::int64_t label = op.labels[row];
  const bool is_class = label >= 0 && label < op.cols;
  sum = is_class ? warp_sum(sum) : NAN;
  shifted = warp_sum(shifted);
  for (std::int64_t j = lane; j < op.cols; j += kWarpThreads) {
    op.write_grad(row * op.cols + j, largest, sum, j == label);
  }
  if (!is_class) return NAN;
  return cross_entropy_loss(float_of(x[label]), largest, sum, op.weights, op.cols, shifted);
}

/// Calls row_value(row) for every row, each by one warp, and adds the values up by block.
template <class RowValue>
__device__ void sum_over_rows(double* partials, std::int64_t rows, const RowValue& row_value) {
  double sum = 0;
  const std::int64_t warps = grid_threads() / kWarpThreads;
  for (std::int64_t row = grid_thread() / kWarpThreads; row < rows; row += warps) {
    const double value = row_value(row);
    if (threadIdx.x % kWarpThreads == 0) sum += value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

template <class Number>
__global__ void __launch_bounds__(kBlockThreads)
    cross_entropy(double* partials, std::int64_t rows, CrossEntropyRow<Number> op) {
  sum_over_rows(partials, rows,
                [&](std::int64_t row) -> double { return cross_entropy_row(op, row); });
}

/// Whether a row's largest logit, the first of equals, is the label's; by one warp, in every lane.
template <class Number>
__device__ bool is_correct_row(const CorrectRow<Number>& op, std::int64_t row) {
  const Number* x = op.logits + row * op.cols;
  const auto larger = [&](std::int64_t one, std::int64_t other) {
    return is_larger(float_of(x[one]), float_of(x[other]));
  };
  std::int64_t best = 0;
  for (std::int64_t j = threadIdx.x % kWarpThreads; j < op.cols; j += kWarpThreads)
    best = larger(j, best) ? j : best;
  for (int step = kWarpThreads / 2; step > 0; step /= 2) {
    const std::int64_t other = __shfl_xor_sync(kAllLanes, best, step);
    const bool equal = !larger(other, best) && !larger(best, other);
    best = larger(other, best) || (equal && other < best) ? other : best;
  }
  return op.take(row, best);
}

template <class Number>
__global__ void __launch_bounds__(kBlockThreads)
    count_correct(double* partials, std::int64_t rows, CorrectRow<Number> op) {
  sum_over_rows(partials, rows,
                [&](std::int64_t row) -> double { return is_correct_row(op, row) ? 1 : 0; });
}

}  // namespace barestep
