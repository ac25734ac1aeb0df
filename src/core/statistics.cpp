#include "core/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace barestep {

double percentile(std::span<const double> sorted, double percent) {
  BARESTEP_REQUIRE(!sorted.empty(), "a percentile needs values");
  const double position = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double share = position - static_cast<double>(below);
  return sorted[below] + share * (sorted[above] - sorted[below]);
}

Statistics statistics_of(std::span<const double> values) {
  BARESTEP_REQUIRE(!values.empty(), "statistics need values");
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);

  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return {.mean = mean,
          .stddev = values.size() > 1 ? std::sqrt(squares / (count - 1)) : 0,
          .p5 = percentile(sorted, 5),
          .p50 = percentile(sorted, 50),
          .p95 = percentile(sorted, 95),
          .p99 = percentile(sorted, 99)};
}

}  // namespace barestep
