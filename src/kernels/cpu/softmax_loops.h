// The vector kernels of attention, for vectors of any length. Each source includes it for the
// instruction set it is compiled for; all instantiations depend on the vector type.
//
// Vec has kWidth floats, which divides kAttentionLanes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/vector_kernels.h"
#include "kernels/formulas.h"

namespace barestep {

template <class Vec>
class SoftmaxLoops {
  static constexpr std::int64_t kWidth = Vec::kWidth;
  static constexpr std::int64_t kColumns =
      kAttentionQueries / kWidth;  // vectors of a row of scores
  static constexpr std::int64_t kParts = kAttentionLanes / kWidth;

 public:
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

  static void softmax_grad(float* scores, float* grads, std::int64_t keys, const float* log_sum,
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
