#include "lab/samples.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "core/error.h"
#include "core/statistics.h"

namespace barestep {
namespace {

constexpr std::size_t kFewestForChange = 6;
constexpr int kResamplings = 400;

double deviation_from_median(std::span<const double> values) {
  if (values.empty()) return 0;
  const double middle = median(values);
  return std::accumulate(values.begin(), values.end(), 0.0,
                         [&](double sum, double value) { return sum + std::abs(value - middle); });
}

/// The best change point in [1, last], or 0 where none explains more than chance.
std::size_t change_point(std::span<const double> values, std::size_t last) {
  const std::size_t count = values.size();
  if (count < kFewestForChange) return 0;
  const double without = deviation_from_median(values);
  if (without == 0) return 0;
  double best = without;
  std::size_t place = 0;
  for (std::size_t split = 1; split <= std::min(last, count - 1); ++split) {
    const double with =
        deviation_from_median(values.first(split)) + deviation_from_median(values.subspan(split));
    if (with < best) {
      best = with;
      place = split;
    }
  }
  const auto n = static_cast<double>(count);
  // A perfect fit of a few values would otherwise be infinitely better.
  const double floor = 1e-9 * without;
  return n * std::log(without / std::max(best, floor)) > 3 * std::log(n) ? place : 0;
}

}  // namespace

double median(std::span<const double> values) {
  BARESTEP_REQUIRE(!values.empty(), "a median of nothing");
  std::vector<double> copy(values.begin(), values.end());
  const auto upper = copy.begin() + static_cast<std::ptrdiff_t>(copy.size() / 2);
  std::nth_element(copy.begin(), upper, copy.end());
  if (copy.size() % 2 == 1) return *upper;
  return (*upper + *std::max_element(copy.begin(), upper)) / 2;
}

std::size_t steady_start(std::span<const double> values) {
  // Warm-up may come in stages: a first step, then a few of another kind.
  std::size_t start = 0;
  for (;;) {
    const auto rest = values.subspan(start);
    const std::size_t half = values.size() / 2;
    const std::size_t more = start >= half ? 0 : change_point(rest, half - start);
    if (more == 0) return start;
    start += more;
  }
}

bool drifts(std::span<const double> values, double share) {
  const std::size_t place = change_point(values, values.size());
  // Fewer than a fifth on one side are outliers rather than a level.
  if (place < values.size() / 5 || place > values.size() - values.size() / 5 || place == 0) {
    return false;
  }
  const double before = median(values.first(place));
  const double behind = median(values.subspan(place));
  return std::abs(before - behind) > share * median(values);
}

std::size_t slow_outliers(std::span<const double> values) {
  const double middle = median(values);
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::abs(value - middle));
  const double limit = middle + std::max(5 * 1.4826 * median(distances), 0.1 * middle);
  return static_cast<std::size_t>(
      std::ranges::count_if(values, [&](double value) { return value > limit; }));
}

Estimate median_of_starts(std::span<const std::vector<double>> starts) {
  std::vector<double> all;
  for (const auto& start : starts) all.insert(all.end(), start.begin(), start.end());
  std::mt19937 random(1);
  // Drawn by remainder, since std::uniform_int_distribution differs between libraries.
  const auto draw = [&random](std::size_t count) { return random() % count; };
  std::vector<double> medians, drawn;
  for (int resampling = 0; resampling < kResamplings; ++resampling) {
    drawn.clear();
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const auto& start = starts[draw(starts.size())];
      for (std::size_t j = 0; j < start.size(); ++j) drawn.push_back(start[draw(start.size())]);
    }
    medians.push_back(median(drawn));
  }
  std::ranges::sort(medians);
  return {median(all), percentile(medians, 2.5), percentile(medians, 97.5)};
}

Estimate ratio(const Estimate& numerator, const Estimate& denominator) {
  return {numerator.median / denominator.median, numerator.low / denominator.high,
          numerator.high / denominator.low};
}

Line fit_line(std::span<const double> x, std::span<const double> y) {
  const auto count = static_cast<double>(x.size());
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / count;
  const double mean_y = std::accumulate(y.begin(), y.end(), 0.0) / count;
  double xx = 0, xy = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    xy += (x[i] - mean_x) * (y[i] - mean_y);
    yy += (y[i] - mean_y) * (y[i] - mean_y);
  }
  BARESTEP_REQUIRE(xx > 0, "a line through one point");
  const double slope = xy / xx;
  return {mean_y - slope * mean_x, slope, yy == 0 ? 1 : slope * xy / yy};
}

double amdahl_speed_up(double serial, double ranks) {
  return 1 / (serial + (1 - serial) / ranks);
}

Estimate serial_fraction(std::span<const SpeedUp> speed_ups) {
  if (speed_ups.empty()) return {1, 1, 1};
  // t - 1/n = s (1 - 1/n), a line through the origin.
  const auto fit = [&](double Estimate::*end) {
    double xy = 0, xx = 0;
    for (const SpeedUp& each : speed_ups) {
      const double x = 1 - 1.0 / each.ranks;
      xy += x * (1 / (each.factor.*end) - 1.0 / each.ranks);
      xx += x * x;
    }
    return xy / xx;
  };
  return {fit(&Estimate::median), fit(&Estimate::high), fit(&Estimate::low)};
}

}  // namespace barestep
