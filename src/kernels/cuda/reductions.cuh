// Kernels that sum: column sums, losses, counts. Orders are fixed; there are no atomics.
//
// Full sums take two launches: every block writes a partial sum, then one block adds those. Losses
// add float terms in double, so their order has almost no effect.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/grid.cuh"
#include "kernels/loop_ops.h"

namespace barestep {

/// The maximum number of blocks, and so of partial sums: the workspace of a launch holds this many.
constexpr int kMaxPartials = static_cast<int>(kLaunchWorkspaceBytes / sizeof(double));

constexpr unsigned kAllLanes = 0xffffffffU;

/// The block of sum_rows: threads along a row, and rows.
constexpr int kSumThreads = 8;
constexpr int kSumRows = 8;

/// out = column sums + beta * out. A thread adds every kSumRows-th row of kCount neighbouring
/// columns; then the sums of a column are added in the order of their first rows. kAligned: all
/// rows are aligned to 16 bytes and their length is a multiple of kCount. Grid: tiles of
/// kSumThreads * kCount columns.
template <int kCount, bool kAligned, class Out, class In>
__global__ void __launch_bounds__(kSumThreads* kSumRows)
    sum_rows(Out* out, const In* in, std::int64_t rows, std::int64_t cols, float beta) {
  begin_kernel();
  constexpr int kCols = kSumThreads * kCount;
  static_assert(kCols <= kSumThreads * kSumRows, "a thread for each column");
  __shared__ float sums[kSumRows][kCols];
  const auto own = static_cast<int>(threadIdx.x) * kCount;
  const std::int64_t tile = std::int64_t{blockIdx.x} * kCols;
  const std::int64_t first = tile + own;
  float sum[kCount] = {};
  if (first < cols) {
#pragma unroll 8
    for (std::int64_t row = threadIdx.y; row < rows; row += kSumRows) {
      const auto pack = load_some<kCount, kAligned>(in + row * cols + first, cols - first);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sum[i] += float_of(pack.of[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[threadIdx.y][own + i] = sum[i];
  __syncthreads();
  const auto thread = static_cast<int>(threadIdx.y * kSumThreads + threadIdx.x);
  const std::int64_t col = tile + thread;
  if (thread >= kCols || col >= cols) return;
  float all = sums[0][thread];
  for (int row = 1; row < kSumRows; ++row) all += sums[row][thread];
  const float old = beta == 0.0F ? 0.0F : float_of(out[col]);
  out[col] = rounded<Out>(accumulate(all, beta, old));
}

/// The sum over the lanes of a warp, in every lane.
template <class T>
__device__ T warp_sum(T value) {
  for (int step = kWarpThreads / 2; step > 0; step /= 2)
    value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

/// The sum over the threads of a block, in its first thread. Call once per kernel.
static __device__ double block_sum(double value) {
  __shared__ double warps[kBlockWarps];
  value = warp_sum(value);
  if (threadIdx.x % kWarpThreads == 0) warps[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  if (threadIdx.x != 0) return 0;
  for (int warp = 1; warp < kBlockWarps; ++warp) value += warps[warp];
  return value;
}

/// The sum of the partial sums, in the first thread of a single block.
static __device__ double total(const double* partials, int count) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kBlockThreads) sum += partials[i];
  return block_sum(sum);
}

/// loss = sum of partials / count + beta * loss.
static __global__ void __launch_bounds__(kBlockThreads)
    finish_loss(float* loss, const double* partials, int blocks, std::int64_t count, float beta) {
  begin_kernel();
  const double sum = total(partials, blocks);
  if (threadIdx.x != 0) return;
  *loss = accumulate(static_cast<float>(sum / static_cast<double>(count)), beta, *loss);
}

static __global__ void __launch_bounds__(kBlockThreads)
    finish_count(std::int32_t* out, const double* partials, int blocks) {
  begin_kernel();
  const double sum = total(partials, blocks);
  if (threadIdx.x == 0) *out = static_cast<std::int32_t>(sum);
}

/// Each block's part of the sum of term(i).
template <class Term>
__global__ void __launch_bounds__(kBlockThreads)
    sum_terms(double* partials, std::int64_t n, Term term) {
  begin_kernel();
  double sum = 0;
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) sum += term(i);
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/// One thread is enough: there is one number per layer.
static __global__ void find_clip_factor(float* factor, const float* squares, std::int64_t n,
                                        double max_norm) {
  begin_kernel();
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(squares[i]);
  *factor = clip_factor(max_norm, sum);
}

/// found_inf = 1 if a number is not finite. Many threads may write the same value.
template <int kCount, class Number>
__global__ void __launch_bounds__(kBlockThreads)
    check_finite(std::int64_t n, std::int64_t packs, const Number* in, float* found_inf) {
  begin_kernel();
  bool finite = true;
  for (std::int64_t i = grid_thread(); i < packs; i += grid_threads()) {
    for (const Number number : load_pack<kCount>(in + kCount * i).of)
      finite = finite && is_finite(number);
  }
  for (std::int64_t i = kCount * packs + grid_thread(); i < n; i += grid_threads()) {
    finite = finite && is_finite(in[i]);
  }
  if (!finite) *found_inf = 1.0F;
}

/// A single thread.
static __global__ void end_loss_scale(UpdateLossScale op, float* scale, const float* found_inf,
                                      std::int32_t* good_steps, std::int32_t* updates) {
  begin_kernel();
  LossScaleNumbers numbers{*scale, *good_steps, *updates};
  update_loss_scale(op, *found_inf > 0.0F, numbers);
  *scale = numbers.scale;
  *good_steps = numbers.good_steps;
  *updates = numbers.updates;
}

/// Writes the gradient of `count` neighbouring numbers; returns the sum of their terms.
template <int kCount, bool kAligned, class Formula, class Number>
__device__ double pack_of_loss(const LossElement<Formula, Number>& element, std::int64_t first,
                               std::int64_t count) {
  const auto output = load_some<kCount, kAligned>(element.output + first, count);
  const auto target = load_some<kCount, kAligned>(element.target + first, count);
  Pack<Number, kCount> grad;
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    grad.of[i] = element.grad_of(output.of[i], target.of[i]);
    if (i < count) sum += element.value_of(output.of[i], target.of[i]);
  }
  store_some<kAligned>(element.grad + first, grad, count);
  return sum;
}

/// The gradient, and each block's part of the sum of the terms. A thread processes kCount
/// neighbouring numbers at a time, whether or not all arrays are aligned to 16 bytes (kAligned).
template <int kCount, bool kAligned, class Formula, class Number>
__global__ void __launch_bounds__(kBlockThreads)
    pointwise_loss(double* partials, std::int64_t n, LossElement<Formula, Number> element) {
  begin_kernel();
  double sum = 0;
  std::int64_t first = kCount * grid_thread();
  for (; first + kCount <= n; first += kCount * grid_threads())
    sum += pack_of_loss<kCount, kAligned>(element, first, kCount);
  if (first < n) sum += pack_of_loss<kCount, false>(element, first, n - first);
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/// The largest of a row's logits, or NaN if there is one, in every lane of the warp.
template <int kCount, bool kAligned, class Number>
__device__ float largest_of_row(const Number* x, std::int64_t cols) {
  float largest = float_of(x[0]);
  for (std::int64_t j = kCount * (threadIdx.x % kWarpThreads); j < cols;
       j += kCount * kWarpThreads) {
    for (const Number logit : load_some<kCount, kAligned>(x + j).of)
      largest = is_larger(float_of(logit), largest) ? float_of(logit) : largest;
  }
  for (int step = kWarpThreads / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, largest, step);
    largest = is_larger(other, largest) ? other : largest;
  }
  return largest;
}

/// One row, by one warp: writes the row of grad and returns the row's loss in every lane. A lane
/// processes kCount neighbouring logits at a time; the number of columns is a multiple of kCount.
template <int kCount, bool kAligned, class Number>
__device__ float cross_entropy_row(const CrossEntropyRow<Number>& op, std::int64_t row) {
  constexpr bool kKeeps = CrossEntropyRow<Number>::kKeepsExponentials;
  const Number* const x = op.logits + row * op.cols;
  Number* const grad = op.grad + row * op.cols;
  const std::int64_t lane = kCount * (threadIdx.x % kWarpThreads);
  const float largest = largest_of_row<kCount, kAligned>(x, op.cols);
  float sum = 0;
  float shifted = 0;
#pragma unroll 1
  for (std::int64_t j = lane; j < op.cols; j += kCount * kWarpThreads) {
    auto pack = load_some<kCount, kAligned>(x + j);
#pragma unroll
    for (Number& logit : pack.of) {
      shifted += float_of(logit) - largest;
      const float exponential = op.exponential(logit, largest);
      sum += exponential;
      if constexpr (kKeeps) logit = exponential;
    }
    if constexpr (kKeeps) store_some<kAligned>(grad + j, pack);
  }
  const std::int64_t label = op.labels[row];
  const bool is_class = label >= 0 && label < op.cols;
  sum = is_class ? warp_sum(sum) : NAN;
  shifted = warp_sum(shifted);
#pragma unroll 1
  for (std::int64_t j = lane; j < op.cols; j += kCount * kWarpThreads) {
    auto pack = load_some<kCount, kAligned>(kKeeps ? grad + j : x + j);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      Number& number = pack.of[i];
      const float exponential = kKeeps ? float_of(number) : op.exponential(number, largest);
      number = op.grad_of(exponential, sum, j + i == label);
    }
    store_some<kAligned>(grad + j, pack);
  }
  if (!is_class) return NAN;
  return cross_entropy_loss(float_of(x[label]), largest, sum, op.weights, op.cols, shifted);
}

/// Calls row_value(row) for every row, with one warp per row, and adds the values up by block.
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

template <int kCount, bool kAligned, class Number>
__global__ void __launch_bounds__(kBlockThreads)
    cross_entropy(double* partials, std::int64_t rows, CrossEntropyRow<Number> op) {
  begin_kernel();
  sum_over_rows(partials, rows, [&](std::int64_t row) -> double {
    return cross_entropy_row<kCount, kAligned>(op, row);
  });
}

/// Whether a row's largest logit, the first of equals, is the label's; one warp, result in every
/// lane.
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
  begin_kernel();
  sum_over_rows(partials, rows,
                [&](std::int64_t row) -> double { return is_correct_row(op, row) ? 1 : 0; });
}

}  // namespace barestep
