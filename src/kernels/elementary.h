// Exponentials, logarithms and their like of fp32 numbers, for every device.
//
// Those of C libraries have versions for several processors, whose last bits differ. These are a
// few multiplications, additions and fma(), so they have the same bits wherever those round as IEEE
// 754 says. Errors are the largest that a sweep found; an ulp is that of the exact result.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/host_device.h"

namespace barestep {

// What single numbers and the vectors of kernels/cpu/vector_*.cpp have in common, so that a formula
// written for both has the same bits for both.

/// The larger or smaller one; b if one of them is NaN.
BARESTEP_HD inline float larger(float a, float b) {
  return a > b ? a : b;
}
BARESTEP_HD inline float smaller(float a, float b) {
  return a < b ? a : b;
}

/// 2^n, from 1.5 * 2^23 + n.
BARESTEP_HD inline float power_of_two(float shifted) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) - 0x4B400000U + 127U) << 23U);
}

/// `value`, or 0 where x is below `lowest`.
BARESTEP_HD inline float zero_below(float x, float lowest, float value) {
  return x < lowest ? 0.0F : value;
}

/// exp(x) for x <= 0, within 0.9 ulp; 0 below the smallest normal result. NaN stays NaN. The
/// polynomial is that of Cephes' expf.
template <class Real>
BARESTEP_HD inline Real exponential(Real x) {
  using std::fma;
  constexpr float kLowest = -87.33F;
  const Real whole(12582912.0F);  // 1.5 * 2^23: adding it rounds to whole numbers
  const Real shifted = fma(x, Real(1.44269504F), whole);
  const Real n = shifted - whole;
  Real r = fma(n, Real(-0.693359375F), x);
  r = fma(n, Real(2.12194440e-4F), r);
  Real p(1.9875691500e-4F);
  p = fma(p, r, Real(1.3981999507e-3F));
  p = fma(p, r, Real(8.3334519073e-3F));
  p = fma(p, r, Real(4.1665795894e-2F));
  p = fma(p, r, Real(1.6666665459e-1F));
  p = fma(p, r, Real(5.0000001201e-1F));
  const Real fraction = fma(r, fma(r, p, Real(1.0F)), Real(1.0F));
  return zero_below(x, kLowest, fraction * power_of_two(shifted));
}

/// erf(x), within 5e-7, by the rational function of Eigen and XLA; exactly 1 or -1 far from 0. NaN
/// stays NaN.
template <class Real>
BARESTEP_HD inline Real error_function(Real x) {
  using std::fma;
  x = smaller(Real(4.0F), larger(Real(-4.0F), x));
  const Real square = x * x;
  Real above(-2.72614225801306e-10F);
  above = fma(above, square, Real(2.77068142495902e-08F));
  above = fma(above, square, Real(-2.10102402082508e-06F));
  above = fma(above, square, Real(-5.69250639462346e-05F));
  above = fma(above, square, Real(-7.34990630326855e-04F));
  above = fma(above, square, Real(-2.95459980854025e-03F));
  above = fma(above, square, Real(-1.60960333262415e-02F));
  Real below(-1.45660718464996e-05F);
  below = fma(below, square, Real(-2.13374055278905e-04F));
  below = fma(below, square, Real(-1.68282697438203e-03F));
  below = fma(below, square, Real(-7.37332916720468e-03F));
  below = fma(below, square, Real(-1.42647390514189e-02F));
  return smaller(Real(1.0F), larger(Real(-1.0F), x * above / below));
}

/// log(1 + f) + exponent * log(2), for f in [-0.293, 0.5].
BARESTEP_HD inline float logarithm_of(float f, float exponent) {
  using std::fma;
  const float square = f * f;
  float p = 0.0480616428F;
  p = fma(p, f, -0.104566F);
  p = fma(p, f, 0.121296458F);
  p = fma(p, f, -0.12636885F);
  p = fma(p, f, 0.142160729F);
  p = fma(p, f, -0.16654025F);
  p = fma(p, f, 0.200017855F);
  p = fma(p, f, -0.250002712F);
  p = fma(p, f, 0.333333194F);
  p = fma(p * f, square, exponent * -2.12194440e-4F);
  p = fma(square, -0.5F, p);
  return fma(exponent, 0.693359375F, f + p);
}

/// log(x), within 0.83 ulp, for x of at least the smallest normal number. NaN stays NaN.
BARESTEP_HD inline float logarithm(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const float mantissa = std::bit_cast<float>((bits & 0x007FFFFFU) | 0x3F000000U);  // [0.5, 1)
  const bool is_small = mantissa < 0.70710678F;
  const auto exponent = static_cast<std::int32_t>(bits >> 23U) - (is_small ? 127 : 126);
  const float f = (mantissa - 1.0F) + (is_small ? mantissa : 0.0F);
  const float result = logarithm_of(f, static_cast<float>(exponent));
  return x < std::numeric_limits<float>::infinity() ? result : x;
}

/// log(1 + x) for x in [0, 1], within 0.84 ulp. NaN stays NaN.
BARESTEP_HD inline float log_of_one_plus(float x) {
  const bool is_small = x < 0.5F;
  return logarithm_of(is_small ? x : 0.5F * (x - 1.0F), is_small ? 0.0F : 1.0F);
}

/// tanh(x), within 1.4 ulp. NaN stays NaN. The polynomial is that of Cephes' tanhf.
BARESTEP_HD inline float hyperbolic_tangent(float x) {
  using std::fma;
  const float size = std::fabs(x);
  const float square = x * x;
  float p = -5.70498872745e-3F;
  p = fma(p, square, 2.06390887954e-2F);
  p = fma(p, square, -5.37397155531e-2F);
  p = fma(p, square, 1.33314422036e-1F);
  p = fma(p, square, -3.33332819422e-1F);
  const float e = exponential(-2.0F * size);
  const float large = 1.0F - 2.0F * e / (1.0F + e);
  return std::copysign(size < 0.625F ? fma(p * square, size, size) : large, x);
}

}  // namespace barestep
