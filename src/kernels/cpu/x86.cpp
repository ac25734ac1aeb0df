// What an x86 processor can run. Compiled for any of them: code that checks for instructions must
// not use them, so each function that does is compiled for the instructions that it uses.
#include <immintrin.h>

#include "kernels/cpu/denormals.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/cpu/widen.h"

namespace barestep {
namespace {

bool runs_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("bmi2") != 0;
}

bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512cd") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}

/// The numbers of rows of a and of b that are multiplied at a time. Their sums stay in registers,
/// and each loaded number is used this many times.
constexpr int kRowsOfBlock = 4;
constexpr int kColsOfBlock = 4;

/// The sum of each of four vectors.
[[gnu::target("avx2")]] inline __m128i sums_of(__m256i v0, __m256i v1, __m256i v2, __m256i v3) {
  const __m256i pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(v0, v1), _mm256_hadd_epi32(v2, v3));
  return _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
}

/// Stores all four sums, or only the first.
template <int kCols>
[[gnu::target("avx2")]] inline void store_sums(__m128i row, std::int32_t* sums) {
  if constexpr (kCols == kColsOfBlock) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums), row);
  } else {
    *sums = _mm_cvtsi128_si32(row);
  }
}

/// Computes kRows x kCols sums. Numbers missing at the end of a row of b are 0.
template <int kRows, int kCols, std::int32_t kOffset>
[[gnu::target("avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]] void sum_bytes(
    const std::int8_t* a, const std::int8_t* b, std::int64_t depth, std::int32_t* sums) {
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(kOffset));
  __m512i acc[kRowsOfBlock][kColsOfBlock];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kColsOfBlock; ++j) acc[i][j] = _mm512_setzero_si512();
  for (std::int64_t k = 0; k < depth; k += 64) {
    const std::int64_t left = depth - k;
    const __mmask64 mask = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    __m512i b_part[kColsOfBlock];
    for (int j = 0; j < kCols; ++j) b_part[j] = _mm512_maskz_loadu_epi8(mask, b + j * depth + k);
    for (int i = 0; i < kRows; ++i) {
      const __m512i a_part =
          _mm512_add_epi8(_mm512_maskz_loadu_epi8(mask, a + i * depth + k), offset);
      for (int j = 0; j < kCols; ++j) acc[i][j] = _mm512_dpbusd_epi32(acc[i][j], a_part, b_part[j]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    __m256i half[kColsOfBlock];
    for (int j = 0; j < kColsOfBlock; ++j) {
      // Uses a mask because GCC 12 warns about its own header without one.
      constexpr __mmask8 kAll = 0xFF;
      half[j] = _mm256_add_epi32(_mm512_maskz_extracti64x4_epi64(kAll, acc[i][j], 0),
                                 _mm512_maskz_extracti64x4_epi64(kAll, acc[i][j], 1));
    }
    store_sums<kCols>(sums_of(half[0], half[1], half[2], half[3]), sums + i * kByteTileCols);
  }
}

/// By blocks of rows and columns; where fewer are left, one at a time.
template <std::int32_t kOffset>
void sum_by_vnni(const ByteTile& tile, std::int32_t* sums) {
  for (std::int64_t i = 0; i < tile.rows;) {
    const bool rows_fit = i + kRowsOfBlock <= tile.rows;
    const std::int8_t* const a = tile.a + i * tile.depth;
    for (std::int64_t j = 0; j < tile.cols;) {
      const bool cols_fit = j + kColsOfBlock <= tile.cols;
      const auto sum =
          rows_fit ? (cols_fit ? sum_bytes<kRowsOfBlock, kColsOfBlock, kOffset>
                               : sum_bytes<kRowsOfBlock, 1, kOffset>)
                   : (cols_fit ? sum_bytes<1, kColsOfBlock, kOffset> : sum_bytes<1, 1, kOffset>);
      sum(a, tile.b + j * tile.depth, tile.depth, sums + i * kByteTileCols + j);
      j += cols_fit ? kColsOfBlock : 1;
    }
    i += rows_fit ? kRowsOfBlock : 1;
  }
}

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

constexpr unsigned kFlushes = _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON;  // results, operands

/// The other bits of the register, such as the exceptions that occurred, stay.
void set_flushes(std::uint64_t flags) {
  _mm_setcsr((_mm_getcsr() & ~kFlushes) | (static_cast<unsigned>(flags) & kFlushes));
}

}  // namespace

ByteKernel vnni_kernel(int bits) {
  constexpr std::string_view kName = "AVX-512 VNNI";
  const bool runs = __builtin_cpu_supports("avx512vnni") != 0 &&
                    __builtin_cpu_supports("avx512bw") != 0 &&
                    __builtin_cpu_supports("avx512vl") != 0;
  if (!runs) return {kName, nullptr, 0};
  return bits == 7 ? ByteKernel{kName, sum_by_vnni<64>, 64}
                   : ByteKernel{kName, sum_by_vnni<128>, 128};
}

const VectorKernels& vector_kernels(Instructions max) {
  const auto allows = [max](Instructions needed) {
    return max == Instructions::kAuto || max >= needed;
  };
  if (allows(Instructions::kAvx512) && runs_avx512()) return kAvx512Kernels;
  if (allows(Instructions::kAvx2) && runs_avx2()) return kAvx2Kernels;
  return kPlainKernels;
}

void widen(const F16* from, std::int64_t count, float* to) {
  if (has_f16c()) return widen_by_f16c(from, count, to);
  for (std::int64_t i = 0; i < count; ++i) to[i] = float_of(from[i]);
}

void narrow(const float* from, std::int64_t count, F16* to) {
  if (has_f16c()) return narrow_by_f16c(from, count, to);
  for (std::int64_t i = 0; i < count; ++i) to[i] = f16_of(from[i]);
}

DenormalScope::DenormalScope(Denormals denormals) : before_(_mm_getcsr()) {
  set_flushes(denormals == Denormals::kFlush ? kFlushes : 0);
}

DenormalScope::~DenormalScope() {
  set_flushes(before_);
}

}  // namespace barestep
