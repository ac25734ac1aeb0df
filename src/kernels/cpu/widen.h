// Conversion between rows of 16-bit and fp32 numbers. Widening is exact. It is needed for 16-bit
// products if a library accepts only fp32.
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
/// Uses the processor's instruction if there is one: with integer arithmetic, widening halves would
/// take as long as multiplying them.
void widen(const F16* from, std::int64_t count, float* to);

/// Rounds to the nearest half, ties to even, as f16_of() does; a NaN stays a NaN, but its bits may
/// differ.
void narrow(const float* from, std::int64_t count, F16* to);

}  // namespace barestep
