#include <immintrin.h>

#include "kernels/cpu/vector_loops.h"

namespace barestep {
namespace {

/// 8 floats.
struct Avx2Floats {
  static constexpr std::int64_t kWidth = 8;
  static constexpr std::int64_t kVectors = 2;
  __m256 v;

  Avx2Floats() = default;
  // Scalars behave in formulas like vectors of equal numbers.
  // NOLINTNEXTLINE(google-explicit-constructor)
  Avx2Floats(__m256 floats) : v(floats) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Avx2Floats(float value) : v(_mm256_set1_ps(value)) {}

  static Avx2Floats load(const float* from) { return _mm256_loadu_ps(from); }
  void store(float* to) const { _mm256_storeu_ps(to, v); }
  /// Loads the first `count` floats, zeros for the rest. `count` may be any integer.
  static Avx2Floats load_part(const float* from, std::int64_t count) {
    return _mm256_maskload_ps(from, first(count));
  }
  void store_part(float* to, std::int64_t count) const { _mm256_maskstore_ps(to, first(count), v); }

  friend Avx2Floats operator+(Avx2Floats a, Avx2Floats b) { return _mm256_add_ps(a.v, b.v); }
  friend Avx2Floats operator-(Avx2Floats a, Avx2Floats b) { return _mm256_sub_ps(a.v, b.v); }
  friend Avx2Floats operator*(Avx2Floats a, Avx2Floats b) { return _mm256_mul_ps(a.v, b.v); }
  friend Avx2Floats operator/(Avx2Floats a, Avx2Floats b) { return _mm256_div_ps(a.v, b.v); }
  friend Avx2Floats sqrt(Avx2Floats a) { return _mm256_sqrt_ps(a.v); }
  friend Avx2Floats fma(Avx2Floats a, Avx2Floats b, Avx2Floats c) {
    return _mm256_fmadd_ps(a.v, b.v, c.v);
  }

  /// The larger one; b if one of them is NaN.
  friend Avx2Floats larger(Avx2Floats a, Avx2Floats b) { return _mm256_max_ps(a.v, b.v); }
  /// The smaller one; b if one of them is NaN.
  friend Avx2Floats smaller(Avx2Floats a, Avx2Floats b) { return _mm256_min_ps(a.v, b.v); }
  /// a0 b0 a1 b1 ... of the first or the second halves.
  friend Avx2Floats first_halves_in_turn(Avx2Floats a, Avx2Floats b) {
    return __builtin_shufflevector(a.v, b.v, 0, 8, 1, 9, 2, 10, 3, 11);
  }
  friend Avx2Floats second_halves_in_turn(Avx2Floats a, Avx2Floats b) {
    return __builtin_shufflevector(a.v, b.v, 4, 12, 5, 13, 6, 14, 7, 15);
  }
  /// 2^n, from 1.5 * 2^23 + n.
  friend Avx2Floats power_of_two(Avx2Floats shifted) {
    const __m256i biased =
        _mm256_sub_epi32(_mm256_castps_si256(shifted.v), _mm256_set1_epi32(0x4B400000 - 127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  /// `value`, or 0 where x is below `lowest`.
  friend Avx2Floats zero_below(Avx2Floats x, float lowest, Avx2Floats value) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x.v, _mm256_set1_ps(lowest), _CMP_LT_OQ), value.v);
  }

 private:
  static __m256i first(std::int64_t count) {
    const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const auto limit = static_cast<int>(count < 0 ? 0 : count < kWidth ? count : kWidth);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(limit), places);
  }
};

}  // namespace

constinit const VectorKernels kAvx2Kernels = kernels_of<Avx2Floats>("AVX2");

}  // namespace barestep
