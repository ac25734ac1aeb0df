// Replaces the GPU's clock when kernels are compiled for the host.
#pragma once

#include <chrono>
#include <cstdint>

namespace barestep {

inline std::uint64_t clock_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

}  // namespace barestep
