// A tensor: where numbers will lie, not the numbers.
//
// Tensors are unbound: a buffer, an offset and a shape. Programs are built, priced, checked and
// printed with them before any memory exists; an address table (core/addresses.h) binds them when a
// program runs.
#pragma once

#include <bit>
#include <cstdint>

namespace barestep {

/// bfloat16: the upper half of a float. As many exponents, 8 bits of precision.
struct Bf16 {
  std::uint16_t bits;

  friend constexpr bool operator==(const Bf16&, const Bf16&) = default;
};

/// The nearest one, ties to even; every NaN is one NaN. As PyTorch's (c10/util/BFloat16.h).
constexpr Bf16 bf16_of(float x) {
  constexpr std::uint16_t kNan = 0x7FC0;
  if (x != x) return {kNan};
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t half = 0x7FFFU + ((bits >> 16U) & 1U);
  return {static_cast<std::uint16_t>((bits + half) >> 16U)};
}

/// Exact.
constexpr float float_of(Bf16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16U);
}
constexpr float float_of(float x) {
  return x;
}

enum class DType {
  kF32,
  kBF16,  // Bf16
  kI32,
  kU8,  // raw bytes, e.g. the state of a random generator
  kI8,
};

constexpr std::int64_t bytes_of(DType dtype) {
  const bool is_byte = dtype == DType::kU8 || dtype == DType::kI8;
  return is_byte ? 1 : dtype == DType::kBF16 ? 2 : 4;
}

using BufferId = int;
constexpr BufferId kNoBuffer = -1;

/// rows x cols numbers, row-major and contiguous, `offset_bytes` into a buffer.
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

  /// Numbers first .. first + count - 1 of the same, as one row.
  [[nodiscard]] constexpr Tensor flat_slice(std::int64_t first, std::int64_t count) const {
    return {buffer, offset_bytes + first * bytes_of(dtype), 1, count, dtype};
  }

  friend constexpr bool operator==(const Tensor&, const Tensor&) = default;
};

/// True when the two share a byte; an empty tensor shares none. Slots are not considered: same
/// buffer means same bytes.
constexpr bool overlap(const Tensor& a, const Tensor& b) {
  return a.buffer == b.buffer && a.bytes() > 0 && b.bytes() > 0 && a.offset_bytes < b.end_bytes() &&
         b.offset_bytes < a.end_bytes();
}

}  // namespace barestep
