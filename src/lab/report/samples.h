// Statistics of step times: where a run is steady, how certain a figure is, and which law fits.
//
// Different starts of a program vary more than the steps within one start, so a figure is computed
// once per start and never over the steps of several starts. Starts are made in rounds, one start
// of every case per round, so two cases are compared by the ratio within each round; a slowdown of
// the whole machine cancels out. Intervals are order statistics: exact for any distribution if
// rounds are independent.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace barestep {

/// The median of a figure over starts or rounds, and its 95 % interval. With fewer than 6 values
/// there is no interval: low is minus infinity, high is infinity.
struct Estimate {
  double median = 0;
  double low = 0;
  double high = 0;

  [[nodiscard]] bool has_interval() const;

  friend bool operator==(const Estimate&, const Estimate&) = default;
};

/// The estimate of a figure, given one value per start or round. The median of an even number of
/// values is the geometric mean of the two in the middle, so the estimate of the reciprocals is the
/// reciprocal of the estimate; if one of them is not above 0, it is their arithmetic mean. At least
/// one value.
Estimate estimate_of(std::span<const double> values);

/// Whether the interval is at most half as wide as the figure is large, if there is one.
bool is_certain(const Estimate& estimate);

/// scale / estimate, for an estimate above 0.
Estimate reciprocal(const Estimate& estimate, double scale = 1);

/// The sign test's p: the probability of a split at least this uneven if each difference is
/// positive or negative with equal probability: 2 P(Bin(n, 1/2) <= the smaller count), at most 1. A
/// difference of 0 counts on both sides. 1 without values.
double sign_test_p(std::span<const double> differences);

/// p-values adjusted for multiple comparisons (Holm 1979), in the order given.
std::vector<double> holm_adjusted(std::span<const double> p);

/// The number of warm-up steps, the same for all starts of a case, since warm-up is a property of
/// the program. It is at least 5 (2 if a start has fewer than 20 steps, and never all of them). 5
/// more are added as long as, in all starts (all but one from 9 on), the next 5 steps are slower
/// than the second half of the same start, by more than 2 % in the median, and end within the first
/// half. Fewer than 6 starts cannot show such agreement. For 9 starts of 30 equal but noisy steps,
/// more than 5 are dropped in 0.7 to 1.9 % of cases, depending on the correlation of neighboring
/// steps (0 to 0.8).
std::size_t warmup_length(std::span<const std::vector<double>> starts);

/// The share by which the last third of the steps is slower than the first (below 0: faster), if
/// all starts (all but one from 9 on) agree on the direction and the median is more than 10 %;
/// otherwise 0. Takes steady steps; at least 6 starts of at least 6 steps.
double drift_of(std::span<const std::vector<double>> starts);

/// The number of values that exceed the median by more than a tenth of it and by more than 5
/// standard deviations, estimated from the median absolute deviation (times 1.4826, Hampel 1974).
std::size_t slow_outliers(std::span<const double> values);

/// Fits y = intercept + slope x by least squares. At least two different x.
struct Line {
  double intercept = 0;
  double slope = 0;
};
Line fit_line(std::span<const double> x, std::span<const double> y);

/// Amdahl's law (Amdahl 1967): a step whose serial share is s is 1 / (s + (1 - s) / n) times as
/// fast on n ranks.
double amdahl_speed_up(double serial, double ranks);

struct SpeedUp {
  int ranks = 2;  // more than 1
  double factor = 1;
};

/// The serial share that best fits T(n) / T(1) = s + (1 - s) / n, by least squares. It may be above
/// 1, if ranks slow a step down, and below 0. At least one speed-up.
double serial_fraction(std::span<const SpeedUp> speed_ups);

}  // namespace barestep
