// Products of a warp on tensor cores.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/packs.cuh"

namespace barestep {

/// x = high + low, where high is the tf32 number nearest to x (Veltkamp 1968), and tf32 represents
/// low except for its last bit. x is below 2^114; infinite and larger numbers become NaN.
struct SplitTf32 {
  std::uint32_t high, low;

  __device__ __forceinline__ explicit SplitTf32(float x) {
    const float scaled = x * 8193.0F;  // 2^13 + 1: tf32 has 13 bits fewer than fp32
    const float nearest = scaled - (scaled - x);
    high = bits_of(nearest);
    low = bits_of(x - nearest);
  }
};

/// sums += a * b over eight numbers of depth, as mma_tf32: in 3xTF32, as exact as fp32, or with
/// kRounded a single product of the nearest tf32 numbers. The sums leave the tensor cores, which
/// round towards zero, and are added in fp32.
template <bool kRounded>
__device__ __forceinline__ void add_tf32(float (&sums)[4], const SplitTf32 (&a)[4],
                                         const SplitTf32 (&b)[2]) {
  const std::uint32_t a_high[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
  const std::uint32_t b_high[2] = {b[0].high, b[1].high};
  float part[4] = {};
  if constexpr (!kRounded) {
    const std::uint32_t a_low[4] = {a[0].low, a[1].low, a[2].low, a[3].low};
    const std::uint32_t b_low[2] = {b[0].low, b[1].low};
    mma_tf32(part, a_low, b_high);
    mma_tf32(part, a_high, b_low);
  }
  mma_tf32(part, a_high, b_high);
#pragma unroll
  for (int e = 0; e < 4; ++e) sums[e] += part[e];
}

/// sums += a * b over four times kCount numbers of depth, kCount 2 for floats, else 4: a of 16
/// rows, b of 8 columns, sums as in mma_tf32. Lane 4g + q has kCount neighbors in depth, from
/// kCount * q on: of a's rows g and g + 8, and of b's column g. Floats are multiplied as by
/// add_tf32.
template <bool kRounded, class Number, int kCount>
__device__ __forceinline__ void multiply_run(float (&sums)[4], const Pack<Number, kCount>& top,
                                             const Pack<Number, kCount>& bottom,
                                             const Pack<Number, kCount>& b) {
  static_assert(sizeof(top) == sizeof(uint2));
  if constexpr (sizeof(Number) == sizeof(float)) {
    const SplitTf32 of_a[4] = {SplitTf32(top.of[0]), SplitTf32(bottom.of[0]), SplitTf32(top.of[1]),
                               SplitTf32(bottom.of[1])};
    const SplitTf32 of_b[2] = {SplitTf32(b.of[0]), SplitTf32(b.of[1])};
    add_tf32<kRounded>(sums, of_a, of_b);
  } else {
    const auto first = std::bit_cast<uint2>(top);
    const auto second = std::bit_cast<uint2>(bottom);
    const auto third = std::bit_cast<uint2>(b);
    const std::uint32_t of_a[4] = {first.x, second.x, first.y, second.y};
    const std::uint32_t of_b[2] = {third.x, third.y};
    mma_16_bits<Number>(sums, of_a, of_b);
  }
}

/// The same over 16 numbers of depth, of which a lane has four neighbors.
template <bool kRounded, class Number>
__device__ __forceinline__ void multiply_16(float (&sums)[4], const Pack<Number, 4>& top,
                                            const Pack<Number, 4>& bottom,
                                            const Pack<Number, 4>& b) {
  if constexpr (sizeof(Number) == sizeof(float)) {
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      using Two = Pack<Number, 2>;
      multiply_run<kRounded>(sums, Two{{top.of[k], top.of[k + 1]}},
                             Two{{bottom.of[k], bottom.of[k + 1]}}, Two{{b.of[k], b.of[k + 1]}});
    }
  } else {
    multiply_run<kRounded>(sums, top, bottom, b);
  }
}

}  // namespace barestep
