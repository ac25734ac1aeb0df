#include "core/statistics.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

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
  const double mean = mean_of(values);
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

double mean_of(std::span<const double> values) {
  BARESTEP_REQUIRE(!values.empty(), "a mean needs values");
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median(std::span<const double> values) {
  BARESTEP_REQUIRE(!values.empty(), "a median needs a value");
  std::vector<double> copy(values.begin(), values.end());
  const auto upper = copy.begin() + static_cast<std::ptrdiff_t>(copy.size() / 2);
  std::nth_element(copy.begin(), upper, copy.end());
  if (copy.size() % 2 == 1) return *upper;
  return (*upper + *std::max_element(copy.begin(), upper)) / 2;
}

std::size_t interval_rank(std::size_t count) {
  constexpr double kErrorShare = 0.05;  // share of intervals that miss the median
  // Of exactly `rank` values below the median; of many values, 2^-count is no double.
  double log_probability = -static_cast<double>(count) * std::numbers::ln2;
  double below = 0;
  for (std::size_t rank = 0; rank < count / 2; ++rank) {
    below += std::exp(log_probability);
    if (2 * below > kErrorShare) return rank;
    log_probability += std::log(static_cast<double>(count - rank) / static_cast<double>(rank + 1));
  }
  return count / 2;
}

}  // namespace barestep
