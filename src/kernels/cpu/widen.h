// Rows of numbers of 16 bits in fp32, which is exact: what products of them are made of where a
// library takes fp32 only.
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

}  // namespace barestep
