// Kernels that sum: column sums, losses, counts. Orders are fixed, so a sum repeats to the bit.
//
// In a full sum every block writes a partial sum, and the block that finishes last adds those.
// Losses add float terms in double, so their order has almost no effect.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/grid.cuh"
#include "kernels/loop_ops.h"

namespace barestep {

/// The maximum number of blocks, and so of partial sums: the workspace of a launch holds this many.
constexpr int kMaxPartials = static_cast<int>(kLaunchWorkspaceBytes / sizeof(double));

/// The block of sum_rows: threads along a row, and rows.
constexpr int kSumThreads = 8;
constexpr int kSumRows = 8;

/// The grid of sum_rows.
inline dim3 column_tiles(std::int64_t cols, int of_thread) {
  return {static_cast<unsigned>(tiles(cols, std::int64_t{kSumThreads} * of_thread))};
}

/// The first of the kCount neighboring columns of a thread of sum_rows.
template <int kCount>
__device__ std::int64_t first_column() {
  return (std::int64_t{blockIdx.x} * kSumThreads + threadIdx.x) * kCount;
}

/// out = the sum of every thread's `sum` of its columns + beta * out, in the order of the threads'
/// first rows.
template <int kCount, class Out>
__device__ void add_columns(Out* out, const float (&sum)[kCount], std::int64_t cols, float beta) {
  constexpr int kCols = kSumThreads * kCount;
  static_assert(kCols <= kSumThreads * kSumRows, "a thread for each column");
  __shared__ float sums[kSumRows][kCols];
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    sums[threadIdx.y][static_cast<int>(threadIdx.x) * kCount + i] = sum[i];
  __syncthreads();
  const auto thread = static_cast<int>(threadIdx.y * kSumThreads + threadIdx.x);
  const std::int64_t col = std::int64_t{blockIdx.x} * kCols + thread;
  if (thread >= kCols || col >= cols) return;
  float all = sums[0][thread];
  for (int row = 1; row < kSumRows; ++row) all += sums[row][thread];
  const float old = beta == 0.0F ? 0.0F : float_of(out[col]);
  out[col] = rounded<Out>(accumulate(all, beta, old));
}

/// out = column sums + beta * out. A thread adds every kSumRows-th row of kCount neighboring
/// columns. kAligned: all rows are aligned to 16 bytes and their length is a multiple of kCount.
/// Grid: tiles of kSumThreads * kCount columns.
template <int kCount, bool kAligned, class Out, class In>
__global__ void __launch_bounds__(kSumThreads* kSumRows)
    sum_rows(Out* out, const In* in, std::int64_t rows, std::int64_t cols, float beta) {
  begin_kernel();
  const std::int64_t first = first_column<kCount>();
  float sum[kCount] = {};
  if (first < cols) {
#pragma unroll 8
    for (std::int64_t row = threadIdx.y; row < rows; row += kSumRows) {
      const auto pack = load_some<kCount, kAligned>(in + row * cols + first, cols - first);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sum[i] += float_of(pack.of[i]);
    }
  }
  add_columns(out, sum, cols, beta);
}

/// out = column sums of squared errors, in the order of sum_rows. Grid: tiles of kSumThreads
/// columns.
template <class Number>
__global__ void __launch_bounds__(kSumThreads* kSumRows)
    squared_errors(float* out, const Number* output, const float* target, std::int64_t rows,
                   std::int64_t cols) {
  begin_kernel();
  const std::int64_t col = first_column<1>();
  float sum[1] = {};
  if (col < cols) {
    for (std::int64_t row = threadIdx.y; row < rows; row += kSumRows) {
      const std::int64_t i = row * cols + col;
      sum[0] += LossFormula<LossKind::kMse>::value(float_of(output[i]), target[i]);
    }
  }
  add_columns(out, sum, cols, 0.0F);
}

/// Computes the gradient of an activation in place, and out = its column sums + beta * out, in the
/// order of sum_rows. A thread loads kAtOnce of its rows before it stores them.
template <int kCount, bool kAligned, class Formula>
__global__ void __launch_bounds__(kSumThreads* kSumRows)
    activation_grad_sums(float* out, ActivationGradElement<Formula, float> element,
                         std::int64_t rows, std::int64_t cols, float beta) {
  begin_kernel();
  constexpr int kAtOnce = 4;
  constexpr std::int64_t kStep = kSumRows;
  const std::int64_t first = first_column<kCount>();
  const std::int64_t count = cols - first;
  float sum[kCount] = {};
  if (first < cols) {
    for (std::int64_t row = threadIdx.y; row < rows; row += kAtOnce * kStep) {
      Pack<float, kCount> grad[kAtOnce], from[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (row + k * kStep >= rows) break;
        const std::int64_t at = (row + k * kStep) * cols + first;
        grad[k] = load_some<kCount, kAligned>(element.grad + at, count);
        from[k] = load_some<kCount, kAligned>(element.from + at, count);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (row + k * kStep >= rows) break;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          grad[k].of[i] = element.of(grad[k].of[i], from[k].of[i]);
          sum[i] += grad[k].of[i];
        }
        store_some<kAligned>(element.grad + (row + k * kStep) * cols + first, grad[k], count);
      }
    }
  }
  add_columns(out, sum, cols, beta);
}

/// The sum over the lanes of a warp, in every lane.
template <class T>
__device__ T warp_sum(T value) {
  for (int step = kWarpThreads / 2; step > 0; step /= 2)
    value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

/// The sum over the threads of a block, in its first thread. Between two calls, that thread must
/// pass a barrier with the others.
inline __device__ double block_sum(double value) {
  __shared__ double warps[kBlockWarps];
  value = warp_sum(value);
  if (threadIdx.x % kWarpThreads == 0) warps[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  if (threadIdx.x != 0) return 0;
  for (int warp = 1; warp < kBlockWarps; ++warp) value += warps[warp];
  return value;
}

/// Where the blocks of a launch leave their sums: kMaxPartials of them, and LaunchMemory's count.
struct Partials {
  double* sums;
  unsigned* finished;
};

/// Adds the threads' sums over the whole grid, or over other `blocks`, of which this is number
/// `block`. Returns true in one thread, the first of the block that finishes last, with the total
/// in `sum`. The order of the additions does not depend on which block that is. Call once per
/// kernel, in all threads.
inline __device__ bool grid_sum(double& sum, const Partials& partials, unsigned block = blockIdx.x,
                                unsigned blocks = gridDim.x) {
  __shared__ bool is_last;
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    partials.sums[block] = sum;
    __threadfence();  // before the count, so that whoever sees the count sees the sum
    const unsigned last = blocks - 1;
    is_last = atomicInc(partials.finished, last) == last;  // which sets it to 0 again
    __threadfence();  // after the count, so that the sums of the others are seen with it
  }
  __syncthreads();
  if (!is_last) return false;
  sum = 0;
  // Past the first-level cache, which other blocks do not write through.
  for (unsigned i = threadIdx.x; i < blocks; i += kBlockThreads) sum += __ldcg(partials.sums + i);
  sum = block_sum(sum);
  return threadIdx.x == 0;
}

/// loss = sum / count + beta * loss.
struct LossTotal {
  float* loss;
  std::int64_t count = 1;
  float beta = 0;

  __device__ void operator()(double sum) const {
    *loss = accumulate(static_cast<float>(sum / static_cast<double>(count)), beta, *loss);
  }
};
template <class LossOp>
LossTotal total_of(const LossOp& op, const Addresses& addresses) {
  return {addresses.at(op.loss), op.count, op.beta};
}

/// total(the sum of term(i) over [0, n)).
template <class Term>
__global__ void __launch_bounds__(kBlockThreads)
    sum_terms(Partials partials, std::int64_t n, Term term, LossTotal total) {
  begin_kernel();
  double sum = 0;
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) sum += term(i);
  if (grid_sum(sum, partials)) total(sum);
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

/// Writes the gradient of `count` neighboring numbers; returns the sum of their terms.
template <int kCount, bool kAligned, class Element>
__device__ double pack_of_loss(const Element& element, std::int64_t first, std::int64_t count) {
  const auto output = load_some<kCount, kAligned>(element.output + first, count);
  const auto target = load_some<kCount, kAligned>(element.target + first, count);
  Pack<typename Element::Value, kCount> grad;
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    grad.of[i] = element.grad_of(output.of[i], target.of[i]);
    if (i < count) sum += element.value_of(output.of[i], target.of[i]);
  }
  store_some<kAligned>(element.grad + first, grad, count);
  return sum;
}

/// The gradient, and the sum of the terms. A thread processes kCount neighboring numbers at a
/// time, whether or not all arrays are aligned to 16 bytes (kAligned).
template <int kCount, bool kAligned, class Element>
__global__ void __launch_bounds__(kBlockThreads)
    pointwise_loss(Partials partials, std::int64_t n, Element element, LossTotal total) {
  begin_kernel();
  double sum = 0;
  std::int64_t first = kCount * grid_thread();
  for (; first + kCount <= n; first += kCount * grid_threads())
    sum += pack_of_loss<kCount, kAligned>(element, first, kCount);
  if (first < n) sum += pack_of_loss<kCount, false>(element, first, n - first);
  if (grid_sum(sum, partials)) total(sum);
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
/// processes kCount neighboring logits at a time; the number of columns is a multiple of kCount.
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

/// Calls row_value(row) for every row, with one warp per row. Returns like grid_sum.
template <class RowValue>
__device__ bool sum_over_rows(double& sum, const Partials& partials, std::int64_t rows,
                              const RowValue& row_value) {
  sum = 0;
  each_row_by_a_warp(rows, [&](std::int64_t row, std::int64_t lane) {
    const double value = row_value(row);
    if (lane == 0) sum += value;
  });
  return grid_sum(sum, partials);
}

template <int kCount, bool kAligned, class Number>
__global__ void __launch_bounds__(kBlockThreads)
    cross_entropy(Partials partials, std::int64_t rows, CrossEntropyRow<Number> op,
                  LossTotal total) {
  begin_kernel();
  double sum = 0;
  const auto loss_of = [&](std::int64_t row) -> double {
    return cross_entropy_row<kCount, kAligned>(op, row);
  };
  if (sum_over_rows(sum, partials, rows, loss_of)) total(sum);
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
    count_correct(Partials partials, std::int64_t rows, CorrectRow<Number> op, std::int32_t* out) {
  begin_kernel();
  double sum = 0;
  const auto is_correct = [&](std::int64_t row) -> double {
    return is_correct_row(op, row) ? 1 : 0;
  };
  if (sum_over_rows(sum, partials, rows, is_correct)) *out = static_cast<std::int32_t>(sum);
}

}  // namespace barestep
