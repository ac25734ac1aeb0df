// Statistics of a series of measurements.
#pragma once

#include <cstddef>
#include <span>

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

/// `values` must not be empty.
double mean_of(std::span<const double> values);

/// The middle value; for an even number of values, the mean of the two in the middle. `values` must
/// not be empty.
double median(std::span<const double> values);

/// The rank, counted from both ends and from 1, of the values that bound the 95 % interval of the
/// median of `count` values: the largest k with 2 P(Binomial(count, 1/2) < k) <= 0.05. 0 for fewer
/// than 6 values, for which no such interval exists.
std::size_t interval_rank(std::size_t count);

}  // namespace barestep
