// Quantization and its reverse, on single numbers and elements, for the CPU and CUDA; see
// QuantizeWeight, Quantize and QuantizedGemm.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/addresses.h"
#include "core/ops.h"
#include "kernels/formulas.h"
#include "kernels/host_device.h"

namespace barestep {

/// How numbers are quantized to int8: `to` = from / scale + zero_point, clamped to [low, high].
struct Int8Range {
  float scale;
  std::int32_t zero_point, low, high;

  BARESTEP_HD static Int8Range of_weights(float largest) {
    constexpr float kMin = 1.1920929e-07F;  // the minimum in PyTorch's observers
    const float scale = largest / 127.5F;
    return {scale < kMin ? kMin : scale, 0, -128, 127};
  }
  BARESTEP_HD static Int8Range of_row(float largest, int bits) {
    constexpr float kMin = 0x1p-126F;  // any scale works for a row of zeros
    const std::int32_t max = (1 << (bits - 1)) - 1;
    const float scale = largest / static_cast<float>(max);
    return {scale < kMin ? kMin : scale, 0, -max, max};
  }
  /// As PyTorch's ChooseQuantizationParams (quant_utils.h), except for the smallest quantized
  /// value.
  BARESTEP_HD static Int8Range of_batch(float min, float largest, int bits) {
    constexpr float kMin = 6.1e-5F;  // SMALL_SCALE_THRESHOLD there
    const double top = (1 << bits) - 1;
    const std::int32_t begin = -(1 << (bits - 1));
    double scale = (static_cast<double>(largest) - static_cast<double>(min)) / top;
    if (static_cast<float>(scale) <= 0x1p-128F) {
      scale = 0.1;  // 1 / scale would be infinite
    } else if (scale < kMin) {
      const float factor = kMin / static_cast<float>(scale);
      min *= factor;
      largest *= factor;
      scale = kMin;
    }
    const double below = static_cast<double>(min) / scale;
    const double above = static_cast<double>(largest) / scale;
    const double zero = std::fabs(below) < top + std::fabs(above) ? -below : top - above;
    const double inside = zero > top ? top : zero >= 0 ? zero : 0;  // NaN becomes 0
    return {static_cast<float>(scale), begin + static_cast<std::int32_t>(std::rint(inside)), begin,
            begin == -128 ? 127 : -begin};
  }

  /// `inverse` is 1 / scale; PyTorch multiplies by it too. Rounds to the nearest integer, ties to
  /// even, by adding a float so large that it has no fraction bits. NaN becomes `high`.
  [[nodiscard]] BARESTEP_HD std::int8_t quantized(float x, float inverse) const {
    constexpr float kMax = 1024;
    constexpr float kNoFractions = 0x1.8p23F;
    const float scaled = x * inverse;
    const float below = scaled < kMax ? scaled : kMax;
    const float bounded = below > -kMax ? below : -kMax;
    const std::int32_t whole =
        static_cast<std::int32_t>((bounded + kNoFractions) - kNoFractions) + zero_point;
    const std::int32_t not_above = whole < high ? whole : high;
    return static_cast<std::int8_t>(not_above > low ? not_above : low);
  }
};

/// Numbers that share one scale.
struct QuantizeElement {
  std::int8_t* to;
  const float* from;
  Int8Range range;
  float inverse;

  BARESTEP_HD QuantizeElement(std::int8_t* to_numbers, const float* from_numbers,
                              const Int8Range& int8_range)
      : to(to_numbers), from(from_numbers), range(int8_range), inverse(1.0F / int8_range.scale) {}

  BARESTEP_HD void operator()(std::int64_t i) const { to[i] = range.quantized(from[i], inverse); }
};

/// Turns a sum of products into an element of c in a QuantizedGemm.
template <class Formula>
struct DequantizeElement {
  float* c;
  const float* a_scales;
  const float* b_scales;
  const std::int32_t* b_sums;
  const float* bias;
  const std::int32_t* a_zero_point;  // null means 0
  std::int64_t cols;
  std::int64_t a_step, b_step;  // 0: one scale for all

  DequantizeElement(const QuantizedGemm& op, const Addresses& addresses)
      : c(addresses.at(op.c)),
        a_scales(addresses.at(op.a_scales)),
        b_scales(addresses.at(op.b_scales)),
        b_sums(addresses.at<std::int32_t>(op.b_sums)),
        bias(addresses.at(op.bias)),
        a_zero_point(op.a_zero_point ? addresses.at<std::int32_t>(*op.a_zero_point) : nullptr),
        cols(op.c.cols),
        a_step(op.a_zero_point ? 0 : 1),
        b_step(op.b_scales.cols == 1 ? 0 : 1) {}

  /// `sum` is the sum of products of `a` and `b` without scales; `offset` was added to each of `a`.
  BARESTEP_HD void operator()(std::int64_t row, std::int64_t col, std::int32_t sum,
                              std::int32_t offset = 0) const {
    const std::int32_t zero = a_zero_point == nullptr ? 0 : *a_zero_point;
    const std::int32_t exact = sum - (zero + offset) * b_sums[col];
    const float scale = a_scales[row * a_step] * b_scales[col * b_step];
    c[row * cols + col] = Formula::value(std::fma(static_cast<float>(exact), scale, bias[col]));
  }
};

}  // namespace barestep
