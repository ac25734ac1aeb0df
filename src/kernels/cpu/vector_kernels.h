// The loops that are written once for vectors of any length and compiled for each instruction set.
//
// All instruction sets compute the same bits: a number's arithmetic never depends on the lane it is
// in, and no sum runs across lanes. The plain ones run on any processor.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/config.h"
#include "kernels/formulas.h"

namespace barestep {

/// The rows of a chain product are computed in groups of this many.
constexpr std::int64_t kGroupRows = 6;

/// The floats of a cache line.
constexpr std::int64_t kLineFloats = 16;

/// c = a b, or c += a b: each sum is one chain of fused multiply-adds in the order of k, which
/// begins at 0, or at c. The number (i, k) of a is group_a numbers after that of (i - kGroupRows,
/// k), and within a group of rows either rows or columns are next to each other: at
/// a[i * row_a + k] or, with row_a = 1, at a[i + k * col_a]. Rows of b and c are contiguous.
struct ChainProduct {
  std::int64_t m, n, k;
  const float* a;
  std::int64_t row_a, col_a, group_a;
  const float* b;
  std::int64_t row_b;
  float* c;
  std::int64_t row_c;
  bool adds;
  /// Memory that is needed soon, if not null: a cache line is fetched for each k, since many at a
  /// time would hold up the product. They are the first lines_ahead lines of k / lines_ahead rows,
  /// row_ahead numbers apart, row by row: memory answers neighbors together.
  const float* ahead = nullptr;
  std::int64_t row_ahead = 0, lines_ahead = 1;
  /// If not null, the lines are copied there, one after the other.
  float* copy = nullptr;
};

/// A tile of a product in plain loops.
constexpr std::int64_t kPlainBlock = 64;
using PlainBlock = float[kPlainBlock][kPlainBlock];

/// Part of a linear layer's weight, whose rows are `stride` numbers apart, and the data for its
/// gradient and Adam's step.
struct LinearAdamStrip {
  std::int64_t batch, rows, cols;
  const float* grad_y;  // groups of kGroupRows numbers of each row of the batch, padded with zeros
  const float* x;       // panels of each row of the batch, padded with zeros
  float *weight, *moments1, *moments2;
  std::int64_t stride;
  AdamConstants constants;
  AdamScalars scalars;
};

/// The maximum width of a strip. Strips this wide read weights and moments in long runs.
constexpr std::int64_t kLinearAdamStripCols = 2048;

/// Queries of a tile of attention; a tile of scores has a column for each.
constexpr std::int64_t kAttentionQueries = 64;

/// Sums over a row of scores are taken in this many lanes.
constexpr std::int64_t kAttentionLanes = 16;

struct VectorKernels {
  std::string_view name;

  /// Operands of products are packed in panels of this many columns, a whole number of vectors.
  std::int64_t panel;
  /// to[k * panel + i] = from[i * step + k * depth_step] for i < count and k < depth. One of the
  /// steps is 1. If it is `step`, the rest of the panel becomes 0; otherwise that of a vector.
  void (*pack)(const float* from, std::int64_t step, std::int64_t depth_step, std::int64_t count,
               std::int64_t depth, float* to);
  void (*multiply)(const ChainProduct& product);

  /// sums += a b, with `rows` rows and in the order of `depth` numbers, as plain loops: the
  /// reference for multiply(), compiled for the same instructions, since fma() takes a hundred
  /// times as long where the processor's is not used.
  void (*multiply_plainly)(const PlainBlock& a, const PlainBlock& b, std::int64_t rows,
                           std::int64_t depth, PlainBlock& sums);

  /// Computes the gradients grad_y^T x of a group of rows while Adam updates the group above, whose
  /// weights and moments are fetched from memory meanwhile, so a step takes only as long as the
  /// slower of the two. A strip should have many groups, since no product runs alongside the update
  /// of the last one. Gradients are those of multiply().
  void (*update)(const LinearAdamStrip& strip);

  // Tiles of scores are transposed, keys x kAttentionQueries.

  /// One step of the online softmax. For each query, with the new maximum: scores become
  /// exp(score - maximum), `shrink` is the exponential of how much the maximum grew, negated, and
  /// `sum` = sum * shrink + the sum of the exponentials.
  void (*softmax)(float* scores, std::int64_t keys, float* maximum, float* sum, float* shrink);
  /// Scores become p = exp(score - log_sum), and `grads` p * (grad - delta).
  void (*softmax_grad)(float* scores, float* grads, std::int64_t keys, const float* log_sum,
                       const float* delta);
  /// The softmax of a row of n numbers, in place.
  void (*softmax_row)(float* row, std::int64_t n);

  /// values[i] becomes its GELU; grads[i] becomes grads[i] times GELU's slope at from[i].
  void (*gelu)(float* values, std::int64_t n);
  void (*gelu_grad)(float* grads, const float* from, std::int64_t n);
};

/// Rows of a and rows of b, each of `depth` bytes, stored contiguously.
struct ByteTile {
  const std::int8_t* a;
  const std::int8_t* b;
  std::int64_t depth;
  std::int64_t rows, cols;  // cols: rows of b
};
constexpr std::int64_t kByteTileRows = 64;
constexpr std::int64_t kByteTileCols = 64;  // and the stride between rows of sums

/// sums[i * kByteTileCols + j] = sum over k of (a[i][k] + offset) * b[j][k], for a tile of at most
/// kByteTileRows x kByteTileCols sums. They are exact, so all kernels give the same bits. The
/// numbers of `a` have the number of bits that the kernel was requested for.
struct ByteKernel {
  std::string_view name;
  void (*sum)(const ByteTile& tile, std::int32_t* sums);
  std::int32_t offset;
};

/// AVX-512 VNNI's; `sum` is null if this machine cannot run it.
ByteKernel vnni_kernel(int bits);

/// That where this machine has it, else the plain loop, its reference.
ByteKernel byte_kernel(int bits);
ByteKernel plain_byte_kernel();

/// The fastest ones that this processor can run, limited to `max`.
const VectorKernels& vector_kernels(Instructions max = Instructions::kAuto);

/// Each in a source of its own, compiled for these instructions.
extern const VectorKernels kPlainKernels;
extern const VectorKernels kAvx2Kernels;
extern const VectorKernels kAvx512Kernels;

}  // namespace barestep
