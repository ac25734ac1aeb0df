#include <immintrin.h>

#include "kernels/cpu/widen.h"

namespace barestep {
namespace {

constexpr std::int64_t kWidth = 8;

[[gnu::target("avx,f16c")]] void widen_by_f16c(const F16* from, std::int64_t count, float* to) {
  std::int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
  for (; i < count; ++i) to[i] = float_of(from[i]);
}

[[gnu::target("avx,f16c")]] void narrow_by_f16c(const float* from, std::int64_t count, F16* to) {
  std::int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
  for (; i < count; ++i) to[i] = f16_of(from[i]);
}

// Not all compilers accept the name of F16C; every processor with AVX2 has it.
bool has_f16c() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}

}  // namespace

void widen(const F16* from, std::int64_t count, float* to) {
  if (has_f16c()) return widen_by_f16c(from, count, to);
  for (std::int64_t i = 0; i < count; ++i) to[i] = float_of(from[i]);
}

void narrow(const float* from, std::int64_t count, F16* to) {
  if (has_f16c()) return narrow_by_f16c(from, count, to);
  for (std::int64_t i = 0; i < count; ++i) to[i] = f16_of(from[i]);
}

}  // namespace barestep
