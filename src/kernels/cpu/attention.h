// Attention on the CPU: its tiles, and the vector kernels that compute them.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/addresses.h"
#include "core/ops.h"
#include "kernels/cpu/linear_adam_kernel.h"
#include "kernels/cpu/thread_pool.h"

namespace barestep {

/// Queries of a tile; a tile of scores has a column for each.
constexpr std::int64_t kAttentionQueries = 64;

/// Widths of rows are padded with zeros to a multiple of this.
constexpr std::int64_t kAttentionLanes = 16;

/// c = a b, or c += a b. Number (i, k) of a is at a[i * row_a + k * col_a]; rows of b and c are
/// contiguous. a m x k, b k x n, c m x n; n is a multiple of kAttentionLanes. Each sum is a chain
/// of fused multiply-adds in the order of k.
struct AttentionProduct {
  std::int64_t m, n, k;
  const float* a;
  std::int64_t row_a, col_a;
  const float* b;
  std::int64_t row_b;
  float* c;
  std::int64_t row_c;
  bool adds;
};

/// The work on tiles. Tiles of scores are transposed, keys x kAttentionQueries, so that queries are
/// in the lanes of vectors and no sum runs across them. All kernels compute the same bits.
struct AttentionKernel {
  std::string_view name;
  void (*multiply)(const AttentionProduct& product) = nullptr;
  /// One step of the online softmax. For each query, with the new maximum: scores become
  /// exp(score - maximum), `shrink` is the exponential of how much the maximum grew, negated, and
  /// `sum` = sum * shrink + the sum of the exponentials.
  void (*softmax)(float* scores, std::int64_t keys, float* maximum, float* sum,
                  float* shrink) = nullptr;
  /// Scores become p = exp(score - log_sum), and `grads` p * (grad - delta).
  void (*gradient)(float* scores, float* grads, std::int64_t keys, const float* log_sum,
                   const float* delta) = nullptr;
  /// The softmax of a row of n numbers, in place.
  void (*softmax_row)(float* row, std::int64_t n) = nullptr;
};

/// The fastest kernel that this CPU can run, limited to `max`.
AttentionKernel attention_kernel(LinearAdamIsa max = LinearAdamIsa::kAvx512);

/// In plain C++, for any processor.
AttentionKernel plain_attention_kernel();

/// Kernels for x86, compiled for instructions that not every processor has.
AttentionKernel avx2_attention_kernel();
AttentionKernel avx512_attention_kernel();

/// Block; allocate nothing; the same bits for any number of threads. Each thread needs up to 1 MiB
/// of its stack.
void run_attention(const Attention& op, const Addresses& addresses, const AttentionKernel& kernel,
                   ThreadPool& pool);
void run_attention_grad(const AttentionGrad& op, const Addresses& addresses,
                        const AttentionKernel& kernel, ThreadPool& pool);

}  // namespace barestep
