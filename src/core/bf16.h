// bfloat16: the upper half of a float. As many exponents, 8 bits of precision.
#pragma once

#include <bit>
#include <cstdint>

namespace barestep {

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

}  // namespace barestep
