#include "lab/measurement.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/statistics.h"
#include "core/units.h"
#include "lab/findings.h"

namespace barestep {

Measurement::Measurement(Case what, std::vector<Start> starts)
    : what_(std::move(what)), starts_(std::move(starts)) {
  BARESTEP_REQUIRE(!starts_.empty(), "a measurement needs a start");
  for (std::size_t i = 0; i < starts_.size(); ++i) {
    const auto& step_s = starts_[i].ranks.front().step_s;
    begin_.push_back(steady_start(step_s));
    steady_s_.push_back(steady_of(i, step_s));
  }
  step_s_ = median_of_starts(steady_s_);
}

std::vector<double> Measurement::steady_of(std::size_t start,
                                           const std::vector<double>& values) const {
  return {values.begin() + static_cast<std::ptrdiff_t>(begin_[start]), values.end()};
}

std::vector<double> Measurement::pooled_s() const {
  std::vector<double> all;
  for (const auto& start : steady_s_) all.insert(all.end(), start.begin(), start.end());
  std::ranges::sort(all);
  return all;
}

double Measurement::p95_s() const {
  return percentile(pooled_s(), 95);
}

double Measurement::p99_s() const {
  return percentile(pooled_s(), 99);
}

Estimate Measurement::samples_per_s() const {
  const auto samples = static_cast<double>(workload().batch_size());
  return {samples / step_s_.median, samples / step_s_.high, samples / step_s_.low};
}

double Measurement::phase_s(std::string_view phase, int rank) const {
  std::vector<double> all;
  for (std::size_t i = 0; i < starts_.size(); ++i) {
    const auto& phases = starts_[i].ranks.at(static_cast<std::size_t>(rank)).phase_s;
    const auto found = phases.find(std::string(phase));
    if (found == phases.end()) return 0;
    const std::vector<double> steady = steady_of(i, found->second);
    all.insert(all.end(), steady.begin(), steady.end());
  }
  return median(all);
}

double Measurement::step_s_of(int rank) const {
  std::vector<double> all;
  for (std::size_t i = 0; i < starts_.size(); ++i) {
    const auto steady = steady_of(i, starts_[i].ranks.at(static_cast<std::size_t>(rank)).step_s);
    all.insert(all.end(), steady.begin(), steady.end());
  }
  return median(all);
}

double Measurement::queued_s() const {
  std::vector<double> all;
  for (std::size_t i = 0; i < starts_.size(); ++i) {
    const auto steady = steady_of(i, starts_[i].ranks.front().queued_s);
    all.insert(all.end(), steady.begin(), steady.end());
  }
  return median(all);
}

std::size_t Measurement::warmup_steps() const {
  return *std::ranges::max_element(begin_);
}

std::size_t Measurement::steady_steps() const {
  return pooled_s().size();
}

std::size_t Measurement::outliers() const {
  return slow_outliers(pooled_s());
}

std::size_t Measurement::drifting_starts() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(steady_s_, [](const auto& steps) { return drifts(steps); }));
}

double Measurement::others_share() const {
  double most = 0;
  for (const Start& start : starts_) most = std::max(most, start.others_share);
  return most;
}

std::string verdict_of(const std::vector<Measurement>& cases) {
  std::size_t starts = 0, disturbed = 0, drifting = 0;
  double most = 0;
  std::vector<std::string> unsteady;
  for (const Measurement& each : cases) {
    starts += each.starts().size();
    drifting += each.drifting_starts();
    for (const Start& start : each.starts()) disturbed += start.others_share > kDisturbingShare;
    most = std::max(most, each.others_share());
    const Estimate& step = each.step_s();
    if (step.high - step.low > 0.5 * step.median) unsteady.push_back(each.what().key);
  }
  const std::string runs = counted(static_cast<std::int64_t>(starts), "run");
  std::vector<std::string> reasons;
  if (2 * disturbed > starts) {
    reasons.push_back(fmt::format("other programs took up to {} of the cores during {} of {}",
                                  percent_text(most), disturbed, runs));
  }
  if (2 * drifting > starts) {
    reasons.push_back(
        fmt::format("the step time changed its level within {} of {}", drifting, runs));
  }
  if (!unsteady.empty()) {
    reasons.push_back(
        fmt::format("the median of {} is uncertain by more than half of it", list_text(unsteady)));
  }
  if (reasons.empty()) return "";
  return fmt::format("INVALID: {}; run it again on a quiet machine", list_text(reasons));
}

}  // namespace barestep
