// Neighboring numbers that a thread moves with 16-byte accesses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/grid.cuh"

namespace barestep {

constexpr int kVectorBytes = 16;

/// kCount numbers: one access, or several if they need more than kVectorBytes.
template <class Number, int kCount>
struct Pack {
  Number of[kCount];
};

/// Exact.
template <class Number>
__device__ __forceinline__ float4 widened(const Pack<Number, 4>& pack) {
  return {float_of(pack.of[0]), float_of(pack.of[1]), float_of(pack.of[2]), float_of(pack.of[3])};
}
/// Rounds to nearest.
template <class Number>
__device__ __forceinline__ Pack<Number, 4> narrowed(float4 values) {
  return {{rounded<Number>(values.x), rounded<Number>(values.y), rounded<Number>(values.z),
           rounded<Number>(values.w)}};
}

/// How many of the smallest of these types one access moves.
template <class... Numbers>
constexpr int kPackOf = kVectorBytes / static_cast<int>(std::min({sizeof(Numbers)...}));

/// `from` and `to` are aligned to kVectorBytes.
template <int kCount, class Number>
__device__ __forceinline__ Pack<Number, kCount> load_pack(const Number* from) {
  Pack<Number, kCount> pack;
  static_assert(sizeof(pack) % kVectorBytes == 0, "whole accesses");
  float4 vectors[sizeof(pack) / kVectorBytes];
#pragma unroll
  for (std::size_t i = 0; i < sizeof(pack) / kVectorBytes; ++i)
    vectors[i] = reinterpret_cast<const float4*>(from)[i];
  memcpy(&pack, vectors, sizeof(pack));
  return pack;
}
template <int kCount, class Number>
__device__ __forceinline__ void store_pack(Number* to, const Pack<Number, kCount>& pack) {
  float4 vectors[sizeof(pack) / kVectorBytes];
  memcpy(vectors, &pack, sizeof(pack));
#pragma unroll
  for (std::size_t i = 0; i < sizeof(pack) / kVectorBytes; ++i)
    __stwb(reinterpret_cast<float4*>(to) + i, vectors[i]);  // compilers may split plain stores
}

/// The same, but one by one if addresses are not kAligned, and only for the first `count`. So the
/// assignment of numbers to threads does not depend on addresses.
template <int kCount, bool kAligned, class Number>
__device__ __forceinline__ Pack<Number, kCount> load_some(const Number* from,
                                                          std::int64_t count = kCount) {
  if constexpr (kAligned) {
    return load_pack<kCount>(from);
  } else {
    Pack<Number, kCount> pack{};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < count) pack.of[i] = from[i];
    }
    return pack;
  }
}
template <bool kAligned, class Number, int kCount>
__device__ __forceinline__ void store_some(Number* to, const Pack<Number, kCount>& pack,
                                           std::int64_t count = kCount) {
  if constexpr (kAligned) {
    store_pack(to, pack);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < count) to[i] = pack.of[i];
    }
  }
}

}  // namespace barestep
