// Statistics of step times: where a run is steady, how sure a median is, and which law fits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace barestep {

/// A median and the interval that holds it in 95 of 100 resamplings.
struct Estimate {
  double median = 0;
  double low = 0;
  double high = 0;

  friend bool operator==(const Estimate&, const Estimate&) = default;
};

/// How many of the first values lie on another level than those behind them: the change point, in
/// the first half, that fits two medians to the series best, if it explains more than chance does.
/// "Best" is the least sum of absolute deviations, "more than chance" the Bayesian information
/// criterion of the Laplace distribution with two more parameters (Schwarz 1978): n ln(a / b) must
/// exceed 3 ln n, where a and b are the sums without and with the change. 0 for fewer than 6
/// values.
std::size_t steady_start(std::span<const double> values);

/// Whether a steady series still changes its level by more than `share` of its median: the same
/// criterion, anywhere in the series.
bool drifts(std::span<const double> values, double share = 0.1);

/// Values above the median by more than 5 standard deviations, as the median absolute deviation
/// estimates them (times 1.4826, Hampel 1974), and by more than a tenth of it.
std::size_t slow_outliers(std::span<const double> values);

/// The median over all values of all starts. The interval is a bootstrap's, in two stages: starts
/// are drawn with replacement, then values of each (Davison and Hinkley 1997, section 3.8), since
/// the values of one start resemble each other. The numbers drawn are the same in each call. At
/// least one start, none empty.
Estimate median_of_starts(std::span<const std::vector<double>> starts);

/// Of a quotient of two medians that were estimated independently: extremes of both intervals.
Estimate ratio(const Estimate& numerator, const Estimate& denominator);

double median(std::span<const double> values);

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
  Estimate factor{};
};

/// The serial share that fits T(n) / T(1) = s + (1 - s) / n best, by least squares. Its interval is
/// that of the ends of all speed-ups' intervals. It may be above 1, where ranks slow a step down,
/// and below 0. 1 for no speed-up at all.
Estimate serial_fraction(std::span<const SpeedUp> speed_ups);

}  // namespace barestep
