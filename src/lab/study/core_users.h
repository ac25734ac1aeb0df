// Who else uses the cores of this machine.
#pragma once

#include <chrono>
#include <string>

namespace barestep {

struct CoreUsers {
  int cores = 1;          // of the machine
  double busy_cores = 0;  // that others kept busy, on average
  std::string busiest{};  // "cc1plus 0.9, ninja 0.1", in cores; empty if the system does not say

  /// Whether they take so much that the times of runs differ.
  [[nodiscard]] bool disturb() const;
  /// "1.2 of 2 cores (cc1plus 0.9, ninja 0.1)"
  [[nodiscard]] std::string text() const;
};

/// Watches for so long, in which this program does nothing. Blocks.
CoreUsers watch_core_users(std::chrono::milliseconds time);

}  // namespace barestep
