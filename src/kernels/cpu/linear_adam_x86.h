// The kernel of the fused update, for vectors of any length. Each source includes it for the
// instruction set it is compiled for. All instantiations depend on the vector type, so no two
// sources share one.
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "kernels/cpu/linear_adam_kernel.h"

namespace barestep {

/// Batches are summed in parts of this many rows, so that a part of grad_y fits the first-level
/// cache.
constexpr std::int64_t kLinearAdamDepth = 512;

/// Weights and moments are prefetched this many numbers before their update: early enough for
/// memory to answer, late enough that they are still in the first-level cache.
constexpr std::int64_t kLinearAdamAhead = 512;

struct VectorArithmetic {
  template <class Vec>
  static Vec divide(const Vec& a, const Vec& b) {
    return a / b;
  }
  template <class Vec>
  static Vec root(const Vec& x) {
    return sqrt(x);
  }
};

/// Vec has kWidth floats. The sums of kVectors vectors in each of kLinearAdamGroup rows fit in
/// registers.
template <class Vec>
class LinearAdamLoop {
 public:
  explicit LinearAdamLoop(const LinearAdamStrip& strip)
      : s_(strip), ahead_(strip.cols < kLinearAdamAhead ? strip.cols : kLinearAdamAhead) {}

  void run() {
    for (std::int64_t row = 0; row < s_.rows; row += kRows) {
      float* const grads = grads_[row / kRows % 2];
      make_gradients(row, grads);
      finish();
      rows_left_ = s_.rows - row < kRows ? s_.rows - row : kRows;
      next_grads_ = grads;
      begin_row();
    }
    finish();
  }

 private:
  static constexpr std::int64_t kRows = kLinearAdamGroup;
  static constexpr std::int64_t kWidth = Vec::kWidth;
  static constexpr std::int64_t kVectors = Vec::kVectors;
  static constexpr std::int64_t kPanel = kVectors * kWidth;
  using RowOfSums = Vec[static_cast<std::size_t>(kVectors)];
  using Sums = RowOfSums[static_cast<std::size_t>(kRows)];

  /// Computes the gradients of a group of rows, stored kLinearAdamStripCols apart. Rows beyond the
  /// end of the strip count as 0.
  void make_gradients(std::int64_t row, float* grads) {
    const std::int64_t rows = s_.rows - row;
    std::int64_t first = 0;
    do {
      const std::int64_t left = s_.batch - first;
      const std::int64_t depth = left < kLinearAdamDepth ? left : kLinearAdamDepth;
      for (std::int64_t k = 0; k < depth; ++k) {
        const float* const from = s_.grad_y + (first + k) * s_.stride_y + row;
        for (std::int64_t i = 0; i < kRows; ++i) {
          packed_[k * kRows + i] = i < rows ? from[i] : 0.0F;
        }
      }
      const float* const x = s_.x + first * s_.stride;
      std::int64_t col = 0;
      for (; col + kPanel <= s_.cols; col += kPanel) {
        multiply<true>(x + col, depth, first > 0, kPanel, grads + col);
      }
      if (col < s_.cols) multiply<false>(x + col, depth, first > 0, s_.cols - col, grads + col);
      first += depth;
    } while (first < s_.batch);
  }

  /// Sums kRows x kPanel gradients, interleaved with pending updates: the sums are cut into as many
  /// parts as there are vectors, and a vector of weights is updated after each part. Without
  /// kWhole, the panel has fewer columns.
  template <bool kWhole>
  [[gnu::noinline]] void multiply(const float* x, std::int64_t depth, bool is_begun,
                                  std::int64_t cols, float* grads) {
    constexpr std::int64_t kSteps = kRows * kVectors;
    Sums sums;
#pragma GCC unroll 6
    for (std::int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (std::int64_t j = 0; j < kVectors; ++j) {
        sums[i][j] = is_begun ? Vec::load(grads + i * kLinearAdamStripCols + j * kWidth) : Vec(0);
      }
    }
    std::int64_t k = 0;
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      for (const std::int64_t end = step * depth / kSteps; k < end; ++k) {
        RowOfSums row;
#pragma GCC unroll 4
        for (std::int64_t j = 0; j < kVectors; ++j) {
          const float* const from = x + k * s_.stride + j * kWidth;
          row[j] = kWhole ? Vec::load(from) : Vec::load_part(from, cols - j * kWidth);
        }
#pragma GCC unroll 6
        for (std::int64_t i = 0; i < kRows; ++i) {
          const Vec factor(packed_[k * kRows + i]);
#pragma GCC unroll 4
          for (std::int64_t j = 0; j < kVectors; ++j) sums[i][j] = fma(factor, row[j], sums[i][j]);
        }
      }
      advance();
    }
#pragma GCC unroll 6
    for (std::int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (std::int64_t j = 0; j < kVectors; ++j) {
        sums[i][j].store(grads + i * kLinearAdamStripCols + j * kWidth);
      }
    }
  }

  /// Starts updating the next row.
  void begin_row() {
    const std::int64_t first = row_++ * s_.stride;
    weight_ = s_.weight + first;
    moments1_ = s_.moments1 + first;
    moments2_ = s_.moments2 + first;
    grads_left_ = next_grads_;
    next_grads_ += kLinearAdamStripCols;
    left_ = s_.cols;
  }

  void finish() {
    while (rows_left_ > 0) advance();
  }

  /// Updates one vector of weights whose gradients are complete, and prefetches data from later in
  /// the row or from the next one.
  [[gnu::always_inline]] void advance() {
    if (rows_left_ == 0) return;
    const std::int64_t ahead = left_ > ahead_ ? ahead_ : ahead_ + s_.stride - s_.cols;
    _mm_prefetch(reinterpret_cast<const char*>(weight_ + ahead), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(moments1_ + ahead), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(moments2_ + ahead), _MM_HINT_T0);
    if (left_ > kWidth) {
      update<true>();
      weight_ += kWidth;
      moments1_ += kWidth;
      moments2_ += kWidth;
      grads_left_ += kWidth;
      left_ -= kWidth;
      return;
    }
    if (left_ == kWidth) {
      update<true>();
    } else {
      update<false>();
    }
    if (--rows_left_ > 0) begin_row();
  }

  template <bool kWhole>
  [[nodiscard, gnu::always_inline]] Vec load(const float* from) const {
    return kWhole ? Vec::load(from) : Vec::load_part(from, left_);
  }
  template <bool kWhole>
  [[gnu::always_inline]] void store(const Vec& numbers, float* to) const {
    return kWhole ? numbers.store(to) : numbers.store_part(to, left_);
  }

  /// Without kWhole, only `left_` numbers.
  template <bool kWhole>
  [[gnu::always_inline]] void update() {
    Vec weight = load<kWhole>(weight_);
    Vec moment1 = load<kWhole>(moments1_);
    Vec moment2 = load<kWhole>(moments2_);
    adam_step<VectorArithmetic>(s_.constants, s_.scalars, Vec::load(grads_left_), weight, moment1,
                                moment2);
    store<kWhole>(weight, weight_);
    store<kWhole>(moment1, moments1_);
    store<kWhole>(moment2, moments2_);
  }

  const LinearAdamStrip& s_;
  const std::int64_t ahead_;
  // Pending updates: `left_` numbers of the current row, and the rows after it.
  std::int64_t row_ = 0, rows_left_ = 0, left_ = 0;
  float *weight_ = nullptr, *moments1_ = nullptr, *moments2_ = nullptr;
  const float *grads_left_ = nullptr, *next_grads_ = nullptr;
  alignas(64) float grads_[2][kRows * kLinearAdamStripCols];
  alignas(64) float packed_[kLinearAdamDepth * kRows];
};

}  // namespace barestep
