// Rows of numbers between 16 bits and fp32. Widening is exact: products of 16 bits are made of fp32
// where a library takes nothing else.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace barestep {

inline void widen(const float* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
}
inline void widen(const Bf16* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = float_of(from[i]);
}
/// By the processor's instruction where it has one: in arithmetic on integers, halves would cost
/// as much as their product.
void widen(const F16* from, std::int64_t count, float* to);

/// The nearest halves, ties to even, as f16_of() has them; a NaN is a NaN with some bits.
void narrow(const float* from, std::int64_t count, F16* to);

}  // namespace barestep
