// The vector kernels of attention, for vectors of any length. Each source includes it for the
// instruction set it is compiled for; all instantiations depend on the vector type.
//
// Vec has kWidth floats, which divides kAttentionLanes; kVectors vectors in each of six rows of
// sums fit in registers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention.h"
#include "kernels/formulas.h"

namespace barestep {

template <class Vec>
class AttentionLoops {
 public:
  static AttentionKernel kernel() { return {{}, multiply, softmax, gradient, softmax_row}; }

 private:
  static constexpr std::int64_t kRows = 6;
  static constexpr std::int64_t kWidth = Vec::kWidth;
  static constexpr std::int64_t kColumns =
      kAttentionQueries / kWidth;  // vectors of a row of scores
  static constexpr std::int64_t kParts = kAttentionLanes / kWidth;

  static void multiply(const AttentionProduct& product) {
    std::int64_t col = 0;
    for (; col + Vec::kVectors * kWidth <= product.n; col += Vec::kVectors * kWidth) {
      multiply_panel<Vec::kVectors>(product, col);
    }
    if constexpr (Vec::kVectors > 1) multiply_rest<Vec::kVectors - 1>(product, col);
  }

  /// The columns that fill no panel.
  template <std::int64_t kVectors>
  static void multiply_rest(const AttentionProduct& product, std::int64_t col) {
    if (product.n - col == kVectors * kWidth) return multiply_panel<kVectors>(product, col);
    if constexpr (kVectors > 1) multiply_rest<kVectors - 1>(product, col);
  }

  template <std::int64_t kVectors>
  static void multiply_panel(const AttentionProduct& product, std::int64_t col) {
    std::int64_t row = 0;
    for (; row + kRows <= product.m; row += kRows) {
      multiply_tile<kVectors, kRows>(product, row, col);
    }
    last_rows<kVectors, kRows - 1>(product, row, col);
  }

  template <std::int64_t kVectors, std::int64_t kCount>
  static void last_rows(const AttentionProduct& product, std::int64_t row, std::int64_t col) {
    if (product.m - row == kCount) return multiply_tile<kVectors, kCount>(product, row, col);
    if constexpr (kCount > 1) last_rows<kVectors, kCount - 1>(product, row, col);
  }

  template <std::int64_t kVectors, std::int64_t kCount>
  static void multiply_tile(const AttentionProduct& p, std::int64_t row, std::int64_t col) {
    using RowOfSums = Vec[static_cast<std::size_t>(kVectors)];
    RowOfSums sums[static_cast<std::size_t>(kCount)];
    float* const c = p.c + row * p.row_c + col;
#pragma GCC unroll 6
    for (std::int64_t i = 0; i < kCount; ++i) {
#pragma GCC unroll 4
      for (std::int64_t j = 0; j < kVectors; ++j) {
        sums[i][j] = p.adds ? Vec::load(c + i * p.row_c + j * kWidth) : Vec(0);
      }
    }
    const float* a = p.a + row * p.row_a;
    const float* b = p.b + col;
    for (std::int64_t k = 0; k < p.k; ++k, a += p.col_a, b += p.row_b) {
      RowOfSums factors;
#pragma GCC unroll 4
      for (std::int64_t j = 0; j < kVectors; ++j) factors[j] = Vec::load(b + j * kWidth);
#pragma GCC unroll 6
      for (std::int64_t i = 0; i < kCount; ++i) {
        const Vec factor(a[i * p.row_a]);
#pragma GCC unroll 4
        for (std::int64_t j = 0; j < kVectors; ++j) {
          sums[i][j] = fma(factor, factors[j], sums[i][j]);
        }
      }
    }
#pragma GCC unroll 6
    for (std::int64_t i = 0; i < kCount; ++i) {
#pragma GCC unroll 4
      for (std::int64_t j = 0; j < kVectors; ++j) sums[i][j].store(c + i * p.row_c + j * kWidth);
    }
  }

  static void softmax(float* scores, std::int64_t keys, float* maximum, float* sum, float* shrink) {
    for (std::int64_t column = 0; column < kColumns; ++column) {
      float* const first = scores + column * kWidth;
      const Vec old = Vec::load(maximum + column * kWidth);
      Vec largest = old;
      for (std::int64_t key = 0; key < keys; ++key) {
        largest = larger(Vec::load(first + key * kAttentionQueries), largest);
      }
      Vec total(0);
      for (std::int64_t key = 0; key < keys; ++key) {
        float* const at = first + key * kAttentionQueries;
        const Vec p = exponential(Vec::load(at) - largest);
        p.store(at);
        total = total + p;
      }
      const Vec factor = exponential(old - largest);
      fma(Vec::load(sum + column * kWidth), factor, total).store(sum + column * kWidth);
      factor.store(shrink + column * kWidth);
      largest.store(maximum + column * kWidth);
    }
  }

  static void gradient(float* scores, float* grads, std::int64_t keys, const float* log_sum,
                       const float* delta) {
    for (std::int64_t column = 0; column < kColumns; ++column) {
      const Vec of_sum = Vec::load(log_sum + column * kWidth);
      const Vec of_grad = Vec::load(delta + column * kWidth);
      for (std::int64_t key = 0; key < keys; ++key) {
        const std::int64_t at = key * kAttentionQueries + column * kWidth;
        // Rounding may put a score above the logarithm of its row's sum.
        const Vec below = Vec::load(scores + at) - of_sum;
        const Vec p = exponential(below);
        p.store(scores + at);
        (p * (Vec::load(grads + at) - of_grad)).store(grads + at);
      }
    }
  }

  /// As kAttentionLanes sums, whatever the width of vectors.
  static void softmax_row(float* row, std::int64_t n) {
    const std::int64_t whole = n / kAttentionLanes * kAttentionLanes;
    float largest = row[0];
    for (std::int64_t i = 1; i < n; ++i) {
      // NaN stays.
      largest = row[i] > largest || row[i] != row[i] ? row[i] : largest;
    }
    Vec sums[static_cast<std::size_t>(kParts)];
    for (Vec& each : sums) each = Vec(0);
    for (std::int64_t i = 0; i < whole; i += kAttentionLanes) {
      for (std::int64_t part = 0; part < kParts; ++part) {
        const Vec p = exponential(Vec::load(row + i + part * kWidth) - Vec(largest));
        p.store(row + i + part * kWidth);
        sums[part] = sums[part] + p;
      }
    }
    float lanes[static_cast<std::size_t>(kAttentionLanes)];
    for (std::int64_t i = whole; i < n; ++i) lanes[i - whole] = row[i];
    for (std::int64_t i = n - whole; i < kAttentionLanes; ++i) lanes[i] = largest;
    for (std::int64_t part = 0; part < kParts; ++part) {
      exponential(Vec::load(lanes + part * kWidth) - Vec(largest)).store(lanes + part * kWidth);
    }
    float sum = 0;
    for (std::int64_t i = whole; i < n; ++i) {
      row[i] = lanes[i - whole];
      sum += row[i];
    }
    for (std::int64_t part = 0; part < kParts; ++part) sums[part].store(lanes + part * kWidth);
    for (const float lane : lanes) sum += lane;
    const float inverse = 1.0F / sum;
    for (std::int64_t i = 0; i < n; ++i) row[i] *= inverse;
  }
};

}  // namespace barestep
