// The host's clock; records and step times are in its seconds.
#pragma once

#include <chrono>

namespace barestep {

/// Seconds of std::chrono::steady_clock. Ranks of one host share it; others are aligned.
inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace barestep
