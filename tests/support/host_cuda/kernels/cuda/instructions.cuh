// Replaces the GPU's instructions when kernels are compiled for the host, with the worst behavior
// that hardware may show: approximations are an ulp off, differently for different arguments, and
// tensor cores round towards zero.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/tensor.h"

namespace barestep {

inline void begin_kernel() {
  host_cuda::begin_kernel();
}

template <class T>
T& dynamic_shared() {
  return *static_cast<T*>(host_cuda::dynamic_shared());
}

template <class Vector, class Number>
Vector load_shared(const Number* from) {
  host_cuda::note_shared_access(from, sizeof(Vector));
  return *reinterpret_cast<const Vector*>(from);
}

template <class Vector, class Number>
void store_shared(Number* to, const Vector& vector) {
  host_cuda::note_shared_access(to, sizeof(Vector));
  *reinterpret_cast<Vector*>(to) = vector;
}

/// A prefetch may not leave its array either: sanitizers see this read.
inline void prefetch(const void* from) {
  static_cast<void>(*static_cast<const volatile std::byte*>(from));
}

template <int kBytes>
void copy_async(void* to, const void* from, bool valid) {
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes == 16);
  host_cuda::note_shared_access(to, kBytes);
  host_cuda::require(!valid || reinterpret_cast<std::uintptr_t>(from) % kBytes == 0,
                     "a misaligned source of a copy");
  if constexpr (kBytes == 2) {
    *static_cast<std::uint16_t*>(to) = valid ? *static_cast<const std::uint16_t*>(from) : 0;
  } else {
    host_cuda::begin_copy(to, valid ? from : nullptr, kBytes);
  }
}

inline void commit_copies() {
  host_cuda::commit_copies();
}
inline void wait_for_copies() {
  host_cuda::wait_for_copies();
}

inline std::uint32_t bits_of(float x) {
  return std::bit_cast<std::uint32_t>(x);
}

struct MmaOperands {
  const std::uint32_t* a;
  const std::uint32_t* b;
};

inline float rounded_towards_zero(double x) {
  const auto nearest = static_cast<float>(x);
  return std::abs(static_cast<double>(nearest)) > std::abs(x) ? std::nextafter(nearest, 0.0F)
                                                              : nearest;
}

/// Products are exact. The sum of four products and the accumulator rounds towards zero, as was
/// observed for tensor cores up to Ampere; Hopper's rounding is not published. A register holds a
/// tf32 number (Number is float) or two of 16 bits.
template <class Number>
void mma_by_warp(const host_cuda::Lane (&lanes)[32]) {
  ++host_cuda::machine().tensor_products;
  constexpr int kOfRegister = 4 / static_cast<int>(sizeof(Number));
  constexpr int kDepth = 8 * kOfRegister;
  float a[16][kDepth];
  float b[kDepth][8];
  float sums[16][8];
  const auto number = [](std::uint32_t bits, int i) {
    if constexpr (kOfRegister == 1) {
      return std::bit_cast<float>(bits & 0xFFFFE000U);
    } else {
      return float_of(Number{static_cast<std::uint16_t>(bits >> 16 * i)});
    }
  };
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4;
    const int q = lane % 4;
    const auto& from = *static_cast<const MmaOperands*>(lanes[lane].in);
    const auto* const old = static_cast<const float*>(lanes[lane].out);
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < kOfRegister; ++k)
        a[g + i % 2 * 8][(q + i / 2 * 4) * kOfRegister + k] = number(from.a[i], k);
      sums[g + i / 2 * 8][2 * q + i % 2] = old[i];
    }
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; k < kOfRegister; ++k)
        b[(q + 4 * i) * kOfRegister + k][g] = number(from.b[i], k);
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int col = 0; col < 8; ++col) {
      for (int first = 0; first < kDepth; first += 4) {
        double sum = sums[row][col];
        for (int k = first; k < first + 4; ++k)
          sum += static_cast<double>(a[row][k]) * static_cast<double>(b[k][col]);
        sums[row][col] = rounded_towards_zero(sum);
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    auto* const out = static_cast<float*>(lanes[lane].out);
    for (int i = 0; i < 4; ++i) out[i] = sums[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
  }
}

inline void mma_tf32(float (&sums)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  const MmaOperands operands{a, b};
  host_cuda::run_by_warp({&operands, sums}, mma_by_warp<float>);
}

template <class Number>
void mma_16_bits(float (&sums)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  const MmaOperands operands{a, b};
  host_cuda::run_by_warp({&operands, sums}, mma_by_warp<Number>);
}

/// `exact` rounded, then moved an ulp down, an ulp up or not at all, depending on the bits of x.
inline float off_by_an_ulp(double exact, float x) {
  const auto rounded = static_cast<float>(exact);
  const std::uint32_t kind = bits_of(x) * 2654435761U >> 30;
  if (!std::isfinite(rounded) || kind % 3 == 0) return rounded;
  return std::nextafter(rounded, kind == 1 ? 0.0F : HUGE_VALF);
}

inline float flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0F, x) : x;
}

inline float approximate_reciprocal(float x) {
  x = flushed(x);
  return flushed(off_by_an_ulp(1 / static_cast<double>(x), x));
}
inline float approximate_root_reciprocal(float x) {
  x = flushed(x);
  return off_by_an_ulp(1 / std::sqrt(static_cast<double>(x)), x);
}

}  // namespace barestep
