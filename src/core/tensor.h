// A tensor: the place of numbers in memory, not the numbers themselves.
//
// Tensors are unbound: a buffer, an offset and a shape. Programs are built, priced, checked and
// printed with them before any memory exists. When a program runs, an address table
// (core/addresses.h) binds them.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "core/index.h"

namespace barestep {

/// bfloat16: the upper half of a float. The same exponent range, 8 bits of precision.
struct Bf16 {
  std::uint16_t bits;

  friend constexpr bool operator==(const Bf16&, const Bf16&) = default;
};

/// Rounds to nearest, ties to even; every NaN becomes the same NaN. As in PyTorch
/// (c10/util/BFloat16.h).
constexpr Bf16 bf16_of(float x) {
  constexpr std::uint16_t kNan = 0x7FC0;
  if (x != x) return {kNan};
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t half = 0x7FFFU + ((bits >> 16U) & 1U);
  return {static_cast<std::uint16_t>((bits + half) >> 16U)};
}

/// IEEE 754's binary16: 5 bits of exponent, 11 bits of precision; from 6e-8 to 65504.
struct F16 {
  std::uint16_t bits;

  friend constexpr bool operator==(const F16&, const F16&) = default;
};

/// Rounds to nearest, ties to even; infinity from 65520 on. Has no branches, so compilers vectorize
/// loops over it.
constexpr F16 f16_of(float x) {
  constexpr std::uint32_t kMinNormal = 0x38800000U;  // 2^-14
  constexpr std::uint32_t kInfinite = 0x477FF000U;   // 65520
  constexpr std::uint32_t kInfinity = 0x7C00U;
  constexpr std::uint32_t kNan = 0x7E00U;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t size = bits & 0x7FFFFFFFU;
  const std::uint32_t normal =
      (size + 0xFFFU + ((size >> 13U) & 1U) - ((127U - 15U) << 23U)) >> 13U;
  // Next to 0.5, the last bit of a float is 2^-24, which is also the last bit of a subnormal.
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5F) -
                                  std::bit_cast<std::uint32_t>(0.5F);
  std::uint32_t half = size < kMinNormal ? subnormal : normal;
  half = size >= kInfinite ? kInfinity : half;
  half = x != x ? kNan : half;
  return {static_cast<std::uint16_t>(half | ((bits >> 16U) & 0x8000U))};
}

/// Exact.
constexpr float float_of(Bf16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16U);
}
constexpr float float_of(F16 x) {
  constexpr std::uint32_t kExponents = (127U - 15U) << 23U;  // the difference of the biases
  const std::uint32_t size = static_cast<std::uint32_t>(x.bits & 0x7FFFU) << 13U;
  // A subnormal's exponent is one higher, and the implicit leading 1 that it lacks is subtracted.
  // Subnormal floats would be slow here.
  const float subnormal = std::bit_cast<float>(size + kExponents + (1U << 23U)) - 0x1p-14F;
  std::uint32_t bits =
      size < (1U << 23U) ? std::bit_cast<std::uint32_t>(subnormal) : size + kExponents;
  bits = size >= (0x7C00U << 13U) ? size | 0x7F800000U : bits;
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000U) << 16U;
  return std::bit_cast<float>(bits | sign);
}
constexpr float float_of(float x) {
  return x;
}

/// `x` converted to Number: float, Bf16 or F16.
template <class Number>
constexpr Number rounded(float x) {
  if constexpr (std::is_same_v<Number, Bf16>) return bf16_of(x);
  if constexpr (std::is_same_v<Number, F16>) return f16_of(x);
  if constexpr (std::is_same_v<Number, float>) return x;
}

enum class DType {
  kF32,
  kBF16,  // Bf16
  kF16,   // F16
  kI32,
  kU8,  // raw bytes, e.g. the state of a random generator
  kI8,
};
template <>
inline constexpr std::string_view kNamesOf<DType>[] = {"f32", "bf16", "f16", "i32", "u8", "i8"};

constexpr std::int64_t bytes_of(DType dtype) {
  const bool is_byte = dtype == DType::kU8 || dtype == DType::kI8;
  return is_byte ? 1 : dtype == DType::kBF16 || dtype == DType::kF16 ? 2 : 4;
}

/// Whether the type is one that rounded() can produce.
constexpr bool is_real(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

/// Calls use() with a number of that type, which must be real.
template <class Use>
auto with_number(DType dtype, const Use& use) {
  if (dtype == DType::kBF16) return use(Bf16{});
  if (dtype == DType::kF16) return use(F16{});
  return use(float{});
}

using BufferId = int;
constexpr BufferId kNoBuffer = -1;

/// rows x cols numbers, row-major and contiguous, starting `offset_bytes` into a buffer.
struct Tensor {
  BufferId buffer = kNoBuffer;
  std::int64_t offset_bytes = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  DType dtype = DType::kF32;

  [[nodiscard]] constexpr std::int64_t size() const { return rows * cols; }
  [[nodiscard]] constexpr std::int64_t bytes() const { return size() * bytes_of(dtype); }
  [[nodiscard]] constexpr std::int64_t end_bytes() const { return offset_bytes + bytes(); }

  /// Rows first .. first + count - 1 of the same numbers.
  [[nodiscard]] constexpr Tensor row_slice(std::int64_t first, std::int64_t count) const {
    return {buffer, offset_bytes + first * cols * bytes_of(dtype), count, cols, dtype};
  }

  /// Numbers first .. first + count - 1 of the same tensor, as one row.
  [[nodiscard]] constexpr Tensor flat_slice(std::int64_t first, std::int64_t count) const {
    return {buffer, offset_bytes + first * bytes_of(dtype), 1, count, dtype};
  }

  friend constexpr bool operator==(const Tensor&, const Tensor&) = default;
};

/// `count` rows from `first` on.
struct Rows {
  std::int64_t first = 0;
  std::int64_t count = 0;

  friend constexpr bool operator==(const Rows&, const Rows&) = default;
};

/// The rows of one of `ranks` ranks, 0 <= rank < ranks: divided as evenly as possible, with one
/// more row for the first ranks.
constexpr Rows share_of_rank(std::int64_t rows, int rank, int ranks) {
  const std::int64_t each = rows / ranks;
  const std::int64_t with_one_more = rows % ranks;
  const bool has_one_more = rank < with_one_more;
  return {rank * each + (has_one_more ? rank : with_one_more), each + (has_one_more ? 1 : 0)};
}

/// A rank's rows of a tensor by the same rule, which ReduceScatter and AllGather use.
constexpr Tensor share_of_rank(const Tensor& tensor, int rank, int ranks) {
  const Rows rows = share_of_rank(tensor.rows, rank, ranks);
  return tensor.row_slice(rows.first, rows.count);
}

/// True if the two share a byte; an empty tensor shares none. Ignores slots: the same buffer means
/// the same bytes.
constexpr bool overlap(const Tensor& a, const Tensor& b) {
  return a.buffer == b.buffer && a.bytes() > 0 && b.bytes() > 0 && a.offset_bytes < b.end_bytes() &&
         b.offset_bytes < a.end_bytes();
}

}  // namespace barestep
