// The GPU's clock. Tests on the host replace this header through the include path.
#pragma once

#include <cstdint>

namespace barestep {

/// Nanoseconds since an arbitrary time; advances in steps of about a microsecond.
__device__ inline std::uint64_t clock_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace barestep
