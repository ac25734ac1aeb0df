// Statistics of step times: where a run is steady, how sure a figure is, and which law fits.
//
// Starts of a program differ by more than its steps do, so a figure is computed once per start and
// never over the steps of several. Starts are made in rounds, one of every case, so that two cases
// are compared by the ratio of each round: what slows the whole machine down cancels out. Intervals
// are order statistics: exact for any distribution as long as rounds are independent.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace barestep {

/// The median of a figure over starts or rounds, and its 95 % interval. With fewer than 6 of them
/// there is none, and anything is possible: low is minus infinity, high is infinity.
struct Estimate {
  double median = 0;
  double low = 0;
  double high = 0;

  [[nodiscard]] bool has_interval() const;

  friend bool operator==(const Estimate&, const Estimate&) = default;
};

/// The middle of the values; of an even number of them their mean.
double median(std::span<const double> values);

/// Which value, counted from both ends and from 1, bounds the 95 % interval of the median of
/// `count` values: the largest k with 2 P(Binomial(count, 1/2) < k) <= 0.05. 0 for fewer than 6,
/// where no such interval exists.
std::size_t interval_rank(std::size_t count);

/// Of a figure of each start or round. The median of an even number is the geometric mean of the
/// two in the middle, so that the estimate of the reciprocals is the reciprocal of the estimate;
/// their arithmetic mean where one is not above 0. At least one value.
Estimate estimate_of(std::span<const double> values);

/// scale / estimate, for an estimate above 0.
Estimate reciprocal(const Estimate& estimate, double scale = 1);

/// How likely so uneven a split is if the sign of each difference is a coin's: 2 P(Bin(n, 1/2) <=
/// the lesser number), at most 1. A difference of 0 counts on both sides. 1 for no value.
double sign_test_p(std::span<const double> differences);

/// p-values adjusted for examining all of them (Holm 1979), in the order given.
std::vector<double> holm_adjusted(std::span<const double> p);

/// How many of the first steps are warm-up: one number for all starts of a case, since warm-up
/// belongs to the program. 5 always (2 if a start has fewer than 20 steps, never all of them); then
/// 5 more as long as the next 5 steps are slower than the second half of the same start in all
/// starts (all but one from 9 on), by more than 2 % in the median, and end within the first half.
/// Fewer than 6 starts show no such agreement. For 9 starts of 30 equal but noisy steps, more than
/// 5 are dropped in 0.7 to 1.9 % of cases, by how strongly neighbouring steps correlate (0 to 0.8).
std::size_t warmup_length(std::span<const std::vector<double>> starts);

/// By what share the last third of the steps is slower than the first (less than 0: faster), where
/// all starts (all but one from 9 on) agree on the direction and the median is more than 10 %; else
/// 0. Of the steady steps; at least 6 starts of at least 6 steps.
double drift_of(std::span<const std::vector<double>> starts);

/// Values above the median by more than 5 standard deviations, as the median absolute deviation
/// estimates them (times 1.4826, Hampel 1974), and by more than a tenth of it.
std::size_t slow_outliers(std::span<const double> values);

/// y = intercept + slope x by least squares. At least two different x.
struct Line {
  double intercept = 0;
  double slope = 0;
  double r_squared = 0;  // share of the variance of y that the line explains; 1 if there is none
};
Line fit_line(std::span<const double> x, std::span<const double> y);

/// Amdahl's law (Amdahl 1967): a step whose serial share is s is 1 / (s + (1 - s) / n) times as
/// fast on n ranks.
double amdahl_speed_up(double serial, double ranks);

struct SpeedUp {
  int ranks = 2;  // more than 1
  double factor = 1;
};

/// The serial share that fits T(n) / T(1) = s + (1 - s) / n best, by least squares. It may be above
/// 1, where ranks slow a step down, and below 0. At least one speed-up.
double serial_fraction(std::span<const SpeedUp> speed_ups);

}  // namespace barestep
