// What profiling itself costs: steps with and without it, taken in turns in one process.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace barestep {

/// Steps come in groups of four: without, with, with, without. So a drift of the machine's speed
/// that is even over a group cancels out.
constexpr std::int64_t kOverheadGroup = 4;
constexpr bool is_profiled_for_overhead(std::int64_t index) {
  return index % kOverheadGroup == 1 || index % kOverheadGroup == 2;
}

struct Overhead {
  std::int64_t groups = 0;  // 0: nothing is known
  double plain_s = 0;       // median step without profiling
  double median_s = 0;      // of the groups' differences
  double low_s = 0;         // the interval that holds the true median
  double high_s = 0;
  bool is_95 = false;  // with 95 % confidence; else, for fewer than 6 groups, their whole range
};

/// `wall_s` are the times of the steps in turn; a group that is not whole is left out. The interval
/// is that of order statistics: it assumes nothing about the distribution.
Overhead overhead_of(std::span<const double> wall_s);

/// One sentence.
std::string overhead_text(const Overhead& overhead);

}  // namespace barestep
