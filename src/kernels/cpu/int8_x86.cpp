// Int8 products with instructions that not every x86 processor has. Each function is compiled for
// the instructions it uses, and called only if the processor has them.
#include <immintrin.h>

#include <cstddef>
#include <cstring>

#include "kernels/cpu/int8_product.h"

namespace barestep {
namespace {

/// The numbers of rows of a and of b that are multiplied at a time. Their sums stay in registers,
/// and each loaded number is used this many times.
constexpr int kVnniRows = 4;
constexpr int kAvx2Rows = 2;
constexpr int kInt8Cols = 4;

/// The sum of each of four vectors.
[[gnu::target("avx2")]] inline __m128i sums_of(__m256i v0, __m256i v1, __m256i v2, __m256i v3) {
  const __m256i pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(v0, v1), _mm256_hadd_epi32(v2, v3));
  return _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
}

/// Stores all four sums, or only the first.
template <int kCols>
[[gnu::target("avx2")]] inline void store_sums(__m128i row, std::int32_t* sums) {
  if constexpr (kCols == kInt8Cols) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums), row);
  } else {
    *sums = _mm_cvtsi128_si32(row);
  }
}

/// Loads 32 numbers; zeros after the first `left`.
[[gnu::target("avx2")]] inline __m256i load_avx2(const std::int8_t* from, std::int64_t left) {
  if (left >= 32) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  alignas(32) std::int8_t part[32] = {};
  std::memcpy(part, from, static_cast<std::size_t>(left));
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(part));
}

/// Computes kRows x kCols sums. Numbers missing at the end of a row of b are 0.
template <int kRows, int kCols, std::int32_t kOffset>
[[gnu::target("avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]] void sum_block_vnni(
    const std::int8_t* a, const std::int8_t* b, std::int64_t depth, std::int32_t* sums) {
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(kOffset));
  __m512i acc[kVnniRows][kInt8Cols];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kInt8Cols; ++j) acc[i][j] = _mm512_setzero_si512();
  for (std::int64_t k = 0; k < depth; k += 64) {
    const std::int64_t left = depth - k;
    const __mmask64 mask = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    __m512i b_part[kInt8Cols];
    for (int j = 0; j < kCols; ++j) b_part[j] = _mm512_maskz_loadu_epi8(mask, b + j * depth + k);
    for (int i = 0; i < kRows; ++i) {
      const __m512i a_part =
          _mm512_add_epi8(_mm512_maskz_loadu_epi8(mask, a + i * depth + k), offset);
      for (int j = 0; j < kCols; ++j) acc[i][j] = _mm512_dpbusd_epi32(acc[i][j], a_part, b_part[j]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    __m256i half[kInt8Cols];
    for (int j = 0; j < kInt8Cols; ++j) {
      // Uses a mask because GCC 12 warns about its own header without one.
      constexpr __mmask8 kAll = 0xFF;
      half[j] = _mm256_add_epi32(_mm512_maskz_extracti64x4_epi64(kAll, acc[i][j], 0),
                                 _mm512_maskz_extracti64x4_epi64(kAll, acc[i][j], 1));
    }
    store_sums<kCols>(sums_of(half[0], half[1], half[2], half[3]), sums + i * kInt8TileCols);
  }
}

/// The same for a + 64, from 0 to 128: a pair of products with b fits in 16 bits.
template <int kRows, int kCols>
[[gnu::target("avx2")]] void sum_block_avx2(const std::int8_t* a, const std::int8_t* b,
                                            std::int64_t depth, std::int32_t* sums) {
  const __m256i offset = _mm256_set1_epi8(64);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i acc[kAvx2Rows][kInt8Cols];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kInt8Cols; ++j) acc[i][j] = _mm256_setzero_si256();
  for (std::int64_t k = 0; k < depth; k += 32) {
    const std::int64_t left = depth - k;
    __m256i a_part[kAvx2Rows];
    for (int i = 0; i < kRows; ++i)
      a_part[i] = _mm256_add_epi8(load_avx2(a + i * depth + k, left), offset);
    for (int j = 0; j < kCols; ++j) {
      const __m256i b_part = load_avx2(b + j * depth + k, left);
      for (int i = 0; i < kRows; ++i) {
        const __m256i pairs = _mm256_maddubs_epi16(a_part[i], b_part);
        acc[i][j] = _mm256_add_epi32(acc[i][j], _mm256_madd_epi16(pairs, ones));
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    store_sums<kCols>(sums_of(acc[i][0], acc[i][1], acc[i][2], acc[i][3]),
                      sums + i * kInt8TileCols);
  }
}

using SumBlock = void (*)(const std::int8_t*, const std::int8_t*, std::int64_t, std::int32_t*);

/// The functions for blocks of `rows` x kInt8Cols; and for fewer rows or fewer columns, one at a
/// time.
struct SumBlocks {
  int rows;
  SumBlock whole, one_col, one_row, one;
};

void sum_by_blocks(const SumBlocks& blocks, const Int8Tile& tile, std::int32_t* sums) {
  for (std::int64_t i = 0; i < tile.rows;) {
    const bool rows_fit = i + blocks.rows <= tile.rows;
    const std::int8_t* const a = tile.a + i * tile.depth;
    for (std::int64_t j = 0; j < tile.cols;) {
      const bool cols_fit = j + kInt8Cols <= tile.cols;
      const SumBlock sum = rows_fit ? (cols_fit ? blocks.whole : blocks.one_col)
                                    : (cols_fit ? blocks.one_row : blocks.one);
      sum(a, tile.b + j * tile.depth, tile.depth, sums + i * kInt8TileCols + j);
      j += cols_fit ? kInt8Cols : 1;
    }
    i += rows_fit ? blocks.rows : 1;
  }
}

template <std::int32_t kOffset>
void sum_by_vnni(const Int8Tile& tile, std::int32_t* sums) {
  sum_by_blocks({kVnniRows, sum_block_vnni<kVnniRows, kInt8Cols, kOffset>,
                 sum_block_vnni<kVnniRows, 1, kOffset>, sum_block_vnni<1, kInt8Cols, kOffset>,
                 sum_block_vnni<1, 1, kOffset>},
                tile, sums);
}

void sum_by_avx2(const Int8Tile& tile, std::int32_t* sums) {
  sum_by_blocks({kAvx2Rows, sum_block_avx2<kAvx2Rows, kInt8Cols>, sum_block_avx2<kAvx2Rows, 1>,
                 sum_block_avx2<1, kInt8Cols>, sum_block_avx2<1, 1>},
                tile, sums);
}

}  // namespace

Int8Kernel vnni_kernel(int bits) {
  constexpr std::string_view kName = "AVX-512 VNNI";
  const bool runs = __builtin_cpu_supports("avx512vnni") != 0 &&
                    __builtin_cpu_supports("avx512bw") != 0 &&
                    __builtin_cpu_supports("avx512vl") != 0;
  if (!runs) return {kName, nullptr, 0};
  return bits == 7 ? Int8Kernel{kName, sum_by_vnni<64>, 64}
                   : Int8Kernel{kName, sum_by_vnni<128>, 128};
}

Int8Kernel avx2_kernel() {
  return {"AVX2", __builtin_cpu_supports("avx2") != 0 ? sum_by_avx2 : nullptr, 64};
}

}  // namespace barestep
