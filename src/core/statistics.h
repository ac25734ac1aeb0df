// Statistics of a series of measurements.
#pragma once

#include <span>
#include <vector>

namespace barestep {

struct Statistics {
  double mean = 0;
  double stddev = 0;  // sample standard deviation (n - 1); 0 for a single value
  double p5 = 0;
  double p50 = 0;
  double p95 = 0;
  double p99 = 0;
};

/// `values` must not be empty.
Statistics statistics_of(std::span<const double> values);

/// The percentile: `percent` of the sorted values are below it, interpolated between neighbors as
/// numpy.percentile does by default. `sorted` must not be empty.
double percentile(std::span<const double> sorted, double percent);

}  // namespace barestep
