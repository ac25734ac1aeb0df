#include "lab/report/samples.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/statistics.h"

namespace barestep {
namespace {

constexpr std::size_t kMinStarts = 6;
constexpr std::size_t kWindow = 5;  // steps

/// The probability P(Binomial(count, 1/2) <= most).
double binomial_below(std::size_t count, std::size_t max) {
  double term = std::exp2(-static_cast<double>(count));  // probability of 0
  double sum = term;
  for (std::size_t i = 1; i <= std::min(max, count); ++i) {
    term *= static_cast<double>(count - i + 1) / static_cast<double>(i);
    sum += term;
  }
  return sum;
}

/// Whether this many of all starts count as agreement: all of them, or all but one from 9 on.
bool agree(std::size_t agreeing, std::size_t starts) {
  return starts >= kMinStarts && agreeing + (starts >= 9 ? 1 : 0) >= starts;
}

std::size_t shortest_of(std::span<const std::vector<double>> starts) {
  BARESTEP_REQUIRE(!starts.empty(), "there are no starts to take steps from");
  return std::ranges::min(starts, {}, [](const auto& steps) { return steps.size(); }).size();
}

}  // namespace

bool Estimate::has_interval() const {
  return std::isfinite(low) && std::isfinite(high);
}

Estimate estimate_of(std::span<const double> values) {
  BARESTEP_REQUIRE(!values.empty(), "an estimate needs a value");
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  const std::size_t count = sorted.size();
  const double upper = sorted[count / 2], lower = sorted[(count - 1) / 2];
  const double middle = count % 2 == 1 ? upper
                        : lower > 0    ? std::sqrt(lower * upper)
                                       : (lower + upper) / 2;
  constexpr double kAnything = std::numeric_limits<double>::infinity();
  const std::size_t rank = interval_rank(count);
  if (rank == 0) return {middle, -kAnything, kAnything};
  return {middle, sorted[rank - 1], sorted[count - rank]};
}

bool is_certain(const Estimate& estimate) {
  constexpr double kWide = 0.5;
  return !estimate.has_interval() ||
         estimate.high - estimate.low <= kWide * std::abs(estimate.median);
}

Estimate reciprocal(const Estimate& estimate, double scale) {
  if (!estimate.has_interval()) return {scale / estimate.median, estimate.low, estimate.high};
  return {scale / estimate.median, scale / estimate.high, scale / estimate.low};
}

double sign_test_p(std::span<const double> differences) {
  const auto above = std::ranges::count_if(differences, [](double value) { return value >= 0; });
  const auto below = std::ranges::count_if(differences, [](double value) { return value <= 0; });
  const auto lesser = static_cast<std::size_t>(std::min(above, below));
  return std::min(1.0, 2 * binomial_below(differences.size(), lesser));
}

std::vector<double> holm_adjusted(std::span<const double> p) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::size_t place) { return p[place]; });
  std::vector<double> adjusted(p.size());
  double max = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    max = std::max(max, p[order[i]] * static_cast<double>(p.size() - i));
    adjusted[order[i]] = std::min(1.0, max);
  }
  return adjusted;
}

std::size_t warmup_length(std::span<const std::vector<double>> starts) {
  constexpr std::size_t kLongStart = 20;
  constexpr double kSlower = 0.02;
  const std::size_t steps = shortest_of(starts);
  if (steps == 0) return 0;
  std::size_t warmup = std::min<std::size_t>(steps < kLongStart ? 2 : kWindow, steps - 1);
  while (warmup + kWindow <= steps / 2) {
    std::vector<double> excess;
    for (const std::vector<double>& start : starts) {
      const std::span<const double> all(start);
      excess.push_back(
          std::log(median(all.subspan(warmup, kWindow)) / median(all.subspan(all.size() / 2))));
    }
    const auto slower = std::ranges::count_if(excess, [](double value) { return value > 0; });
    const bool is_warmup =
        agree(static_cast<std::size_t>(slower), starts.size()) && median(excess) > kSlower;
    if (!is_warmup) break;
    warmup += kWindow;
  }
  return warmup;
}

double drift_of(std::span<const std::vector<double>> starts) {
  constexpr double kNotable = 0.1;
  constexpr std::size_t kMinSteps = 6;
  if (shortest_of(starts) < kMinSteps) return 0;
  std::vector<double> change;
  for (const std::vector<double>& start : starts) {
    const std::span<const double> all(start);
    const std::size_t third = all.size() / 3;
    change.push_back(std::log(median(all.last(third)) / median(all.first(third))));
  }
  const double typical = median(change);
  const auto same = std::ranges::count_if(
      change, [&](double value) { return (value > 0) == (typical > 0) && value != 0; });
  const double share = std::exp(typical) - 1;
  const bool drifts =
      agree(static_cast<std::size_t>(same), starts.size()) && std::abs(share) > kNotable;
  return drifts ? share : 0;
}

std::size_t slow_outliers(std::span<const double> values) {
  const double middle = median(values);
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::abs(value - middle));
  const double limit = middle + std::max(5 * 1.4826 * median(distances), 0.1 * middle);
  return static_cast<std::size_t>(
      std::ranges::count_if(values, [&](double value) { return value > limit; }));
}

Line fit_line(std::span<const double> x, std::span<const double> y) {
  const auto count = static_cast<double>(x.size());
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / count;
  const double mean_y = std::accumulate(y.begin(), y.end(), 0.0) / count;
  double xx = 0, xy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    xy += (x[i] - mean_x) * (y[i] - mean_y);
  }
  BARESTEP_REQUIRE(xx > 0, "a line needs two points");
  const double slope = xy / xx;
  return {mean_y - slope * mean_x, slope};
}

double amdahl_speed_up(double serial, double ranks) {
  return 1 / (serial + (1 - serial) / ranks);
}

double serial_fraction(std::span<const SpeedUp> speed_ups) {
  BARESTEP_REQUIRE(!speed_ups.empty(), "a serial fraction needs a speed-up");
  // t - 1/n = s (1 - 1/n) is a line through the origin.
  double xy = 0, xx = 0;
  for (const SpeedUp& gain : speed_ups) {
    const double x = 1 - 1.0 / gain.ranks;
    xy += x * (1 / gain.factor - 1.0 / gain.ranks);
    xx += x * x;
  }
  return xy / xx;
}

}  // namespace barestep
