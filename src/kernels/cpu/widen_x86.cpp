#include <immintrin.h>

#include "kernels/cpu/widen.h"

namespace barestep {
namespace {

[[gnu::target("avx,f16c")]] void widen_by_f16c(const F16* from, std::int64_t count, float* to) {
  constexpr std::int64_t kWidth = 8;
  std::int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
  for (; i < count; ++i) to[i] = float_of(from[i]);
}

}  // namespace

void widen(const F16* from, std::int64_t count, float* to) {
  // Compilers do not all know the name of F16C; what has AVX2 has it.
  static const bool has_f16c = __builtin_cpu_supports("avx2");
  if (has_f16c) return widen_by_f16c(from, count, to);
  for (std::int64_t i = 0; i < count; ++i) to[i] = float_of(from[i]);
}

}  // namespace barestep
