#include "core/box_muller.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/error.h"

namespace barestep {
namespace {

using std::fma;

struct SineCosine {
  float sine;
  float cosine;
};

// Everything below is free of branches and inlined, so that the loop over a block becomes vector
// code. The polynomials are those of the Cephes library.

// The natural logarithm of u in (0, 1].
inline float logarithm(float u) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(u);
  const float mantissa = std::bit_cast<float>((bits & 0x007FFFFFU) | 0x3F000000U);  // [0.5, 1)
  const bool below_root_half = mantissa < 0.707106781186547524F;
  const float exponent =
      static_cast<float>(static_cast<std::int32_t>(bits >> 23U) - (below_root_half ? 127 : 126));
  const float f = (mantissa - 1.0F) + (below_root_half ? mantissa : 0.0F);
  const float z = f * f;
  float y = 7.0376836292E-2F;
  y = fma(y, f, -1.1514610310E-1F);
  y = fma(y, f, 1.1676998740E-1F);
  y = fma(y, f, -1.2420140846E-1F);
  y = fma(y, f, 1.4249322787E-1F);
  y = fma(y, f, -1.6668057665E-1F);
  y = fma(y, f, 2.0000714765E-1F);
  y = fma(y, f, -2.4999993993E-1F);
  y = fma(y, f, 3.3333331174E-1F);
  y = y * f;
  y = fma(y, z, exponent * -2.12194440e-4F);
  y = fma(-z, 0.5F, y);
  return fma(exponent, 0.693359375F, f + y);
}

// Flips the sign of x where `bit`, 0 or 4, is 4.
inline float flip_sign(float x, std::int32_t bit) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) ^
                              (static_cast<std::uint32_t>(bit) << 29U));
}

// Sine and cosine of t >= 0.
inline SineCosine sine_cosine(float t) {
  // The even octant j nearest to t, and t's distance x from it: pi / 4 is taken off in three parts.
  const std::int32_t j = (static_cast<std::int32_t>(t * 1.27323954473516F) + 1) & ~1;
  const float octant = static_cast<float>(j);
  float x = fma(octant, -0.78515625F, t);
  x = fma(octant, -2.4187564849853515625e-4F, x);
  x = fma(octant, -3.77489497744594108e-8F, x);
  const float z = x * x;

  float cosine = fma(2.443315711809948e-5F, z, -1.388731625493765e-3F);
  cosine = fma(cosine, z, 4.166664568298827e-2F);
  cosine = cosine * z;
  cosine = fma(cosine, z, -(z * 0.5F)) + 1.0F;

  float sine = fma(-1.9515295891e-4F, z, 8.3321608736e-3F);
  sine = fma(sine, z, -1.6666654611e-1F);
  sine = sine * z;
  sine = fma(sine, x, x);

  const bool swapped = (j & 2) != 0;
  return {.sine = flip_sign(swapped ? cosine : sine, j & 4),
          .cosine = flip_sign(swapped ? sine : cosine, ~(j - 2) & 4)};
}

}  // namespace

void box_muller(std::span<float> numbers) {
  BARESTEP_REQUIRE(numbers.size() % kNormalBlock == 0, "normals are made in blocks of 16");
  constexpr std::size_t kHalf = kNormalBlock / 2;
  for (std::size_t start = 0; start < numbers.size(); start += kNormalBlock) {
    float* const first = numbers.data() + start;
    float* const second = first + kHalf;
    for (std::size_t j = 0; j < kHalf; ++j) {
      const float radius = std::sqrt(-2.0F * logarithm(1.0F - first[j]));
      const auto [sine, cosine] = sine_cosine(6.28318530717958647F * second[j]);
      // Adding 0, PyTorch's mean, turns -0 into 0.
      first[j] = radius * cosine + 0.0F;
      second[j] = radius * sine + 0.0F;
    }
  }
}

}  // namespace barestep
