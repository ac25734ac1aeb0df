#include <immintrin.h>

#include "kernels/cpu/vector_loops.h"

namespace barestep {
namespace {

/// 16 floats.
struct Avx512Floats {
  static constexpr std::int64_t kWidth = 16;
  static constexpr std::int64_t kVectors = 4;
  __m512 v;

  Avx512Floats() = default;
  // Scalars behave in formulas like vectors of equal numbers.
  // NOLINTNEXTLINE(google-explicit-constructor)
  Avx512Floats(__m512 floats) : v(floats) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Avx512Floats(float value) : v(_mm512_set1_ps(value)) {}

  static Avx512Floats load(const float* from) { return _mm512_loadu_ps(from); }
  void store(float* to) const { _mm512_storeu_ps(to, v); }
  /// Loads the first `count` floats, zeros for the rest. `count` may be any integer.
  static Avx512Floats load_part(const float* from, std::int64_t count) {
    return _mm512_maskz_loadu_ps(first(count), from);
  }
  void store_part(float* to, std::int64_t count) const {
    _mm512_mask_storeu_ps(to, first(count), v);
  }

  friend Avx512Floats operator+(Avx512Floats a, Avx512Floats b) { return _mm512_add_ps(a.v, b.v); }
  friend Avx512Floats operator-(Avx512Floats a, Avx512Floats b) { return _mm512_sub_ps(a.v, b.v); }
  friend Avx512Floats operator*(Avx512Floats a, Avx512Floats b) { return _mm512_mul_ps(a.v, b.v); }
  friend Avx512Floats operator/(Avx512Floats a, Avx512Floats b) { return _mm512_div_ps(a.v, b.v); }
  /// Uses a mask because GCC 12 warns about its own header without one.
  friend Avx512Floats sqrt(Avx512Floats a) { return _mm512_maskz_sqrt_ps(0xFFFF, a.v); }
  friend Avx512Floats fma(Avx512Floats a, Avx512Floats b, Avx512Floats c) {
    return _mm512_fmadd_ps(a.v, b.v, c.v);
  }

  /// The larger one; b if one of them is NaN.
  friend Avx512Floats larger(Avx512Floats a, Avx512Floats b) {
    return _mm512_maskz_max_ps(0xFFFF, a.v, b.v);
  }
  /// The smaller one; b if one of them is NaN.
  friend Avx512Floats smaller(Avx512Floats a, Avx512Floats b) {
    return _mm512_maskz_min_ps(0xFFFF, a.v, b.v);
  }
  /// a0 b0 a1 b1 ... of the first or the second halves.
  friend Avx512Floats first_halves_in_turn(Avx512Floats a, Avx512Floats b) {
    return __builtin_shufflevector(a.v, b.v, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
                                   23);
  }
  friend Avx512Floats second_halves_in_turn(Avx512Floats a, Avx512Floats b) {
    return __builtin_shufflevector(a.v, b.v, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30,
                                   15, 31);
  }
  /// 2^n, from 1.5 * 2^23 + n.
  friend Avx512Floats power_of_two(Avx512Floats shifted) {
    const __m512i biased =
        _mm512_sub_epi32(_mm512_castps_si512(shifted.v), _mm512_set1_epi32(0x4B400000 - 127));
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xFFFF, biased, 23));
  }
  /// `value`, or 0 where x is below `lowest`.
  friend Avx512Floats zero_below(Avx512Floats x, float lowest, Avx512Floats value) {
    const __mmask16 is_below = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(lowest), _CMP_LT_OQ);
    return _mm512_maskz_mov_ps(static_cast<__mmask16>(~is_below), value.v);
  }

 private:
  static __mmask16 first(std::int64_t count) {
    if (count >= kWidth) return 0xFFFF;
    return count <= 0 ? __mmask16{0} : static_cast<__mmask16>((1 << count) - 1);
  }
};

}  // namespace

constinit const VectorKernels kAvx512Kernels = kernels_of<Avx512Floats>("AVX-512");

}  // namespace barestep
