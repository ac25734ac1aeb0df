#include "lab/study/measurement.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/statistics.h"
#include "core/units.h"

namespace barestep {
namespace {

std::span<const double> steady_part(const std::vector<double>& steps, std::size_t warmup) {
  return std::span(steps).subspan(std::min(warmup, steps.size() - 1));
}

const RankSteps& rank_of(const Start& start, int rank) {
  return start.ranks.at(static_cast<std::size_t>(rank));
}

}  // namespace

std::string command_line_of(const Case& what) {
  std::string line = command_line_of(what.workload);
  if (what.record_ops) line += " --trace FILE";
  return line;
}

Measurement::Measurement(Case what, std::vector<Start> starts)
    : what_(std::move(what)), starts_(std::move(starts)) {
  BARESTEP_REQUIRE(!starts_.empty(), "a measurement needs a start");
  std::vector<std::vector<double>> steps;
  for (const Start& start : starts_) steps.push_back(start.ranks.front().step_s);
  warmup_ = warmup_length(steps);
  step_s_ = estimate_of(step_s_by_start());
}

template <class Take, class Figure>
std::vector<double> Measurement::by_start(int rank, const Take& take, const Figure& figure) const {
  std::vector<double> figures;
  for (const Start& start : starts_) {
    figures.push_back(figure(steady_part(take(rank_of(start, rank)), warmup_)));
  }
  return figures;
}

std::vector<double> Measurement::step_s_by_start(int rank) const {
  return by_start(rank, std::mem_fn(&RankSteps::step_s), median);
}

std::vector<double> Measurement::mean_s_by_start(int rank) const {
  return by_start(rank, std::mem_fn(&RankSteps::step_s), mean_of);
}

std::vector<double> Measurement::sample_s_by_start() const {
  const auto samples_of = [this](const RankSteps& steps) {
    return steps.samples.empty()
               ? std::vector<double>(steps.step_s.size(),
                                     static_cast<double>(workload().step_samples()))
               : steps.samples;
  };
  std::vector<double> seconds = mean_s_by_start();
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    seconds[i] /= mean_of(steady_part(samples_of(starts_[i].ranks.front()), warmup_));
  }
  return seconds;
}

std::vector<double> Measurement::phase_s_by_start(std::string_view phase, int rank) const {
  const std::string name(phase);
  for (const Start& start : starts_) {
    if (!rank_of(start, rank).phase_s.contains(name)) return std::vector<double>(starts_.size());
  }
  return by_start(
      rank, [&](const RankSteps& steps) -> const auto& { return steps.phase_s.at(name); }, mean_of);
}

std::vector<double> Measurement::phases_s_by_start(std::span<const std::string_view> phases) const {
  std::vector<double> sums(starts_.size());
  for (const std::string_view phase : phases) {
    std::ranges::transform(sums, phase_s_by_start(phase), sums.begin(), std::plus<double>());
  }
  return sums;
}

std::vector<double> Measurement::queued_s_by_start() const {
  return by_start(0, std::mem_fn(&RankSteps::queued_s), median);
}

std::vector<double> Measurement::spread_by_start() const {
  return by_start(0, std::mem_fn(&RankSteps::step_s), [](std::span<const double> steps) {
    std::vector<double> sorted(steps.begin(), steps.end());
    std::ranges::sort(sorted);
    return percentile(sorted, 95) / median(sorted) - 1;
  });
}

std::vector<double> Measurement::deviation_s_by_start() const {
  return by_start(0, std::mem_fn(&RankSteps::step_s),
                  [](std::span<const double> steps) { return statistics_of(steps).stddev; });
}

std::vector<double> Measurement::variation_by_start() const {
  return by_start(0, std::mem_fn(&RankSteps::step_s), [](std::span<const double> steps) {
    const Statistics all = statistics_of(steps);
    return all.stddev / all.mean;
  });
}

std::vector<double> Measurement::total_s_by_start() const {
  std::vector<double> all;
  for (const Start& start : starts_) {
    const RankSteps& rank = start.ranks.front();
    all.push_back(std::accumulate(rank.step_s.begin(), rank.step_s.end(), 0.0));
  }
  return all;
}

std::vector<OpTime> Measurement::ops() const {
  std::vector<OpTime> all = starts_.front().ops;
  for (OpTime& op : all) {
    std::vector<double> seconds;
    for (const Start& start : starts_) {
      for (const OpTime& other : start.ops) {
        if (other.name == op.name && other.phase == op.phase && other.block == op.block &&
            other.device == op.device) {
          seconds.push_back(other.seconds);
        }
      }
    }
    op.seconds = estimate_of(seconds).median;
  }
  std::ranges::sort(all, std::ranges::greater{}, &OpTime::seconds);
  return all;
}

Estimate Measurement::mean_s(int rank) const {
  return estimate_of(mean_s_by_start(rank));
}

Estimate Measurement::samples_per_s() const {
  return reciprocal(estimate_of(sample_s_by_start()));
}

double Measurement::phase_s(std::string_view phase, int rank) const {
  return estimate_of(phase_s_by_start(phase, rank)).median;
}

std::vector<double> Measurement::pooled_s() const {
  std::vector<double> all;
  for (const Start& start : starts_) {
    const auto steady = steady_part(start.ranks.front().step_s, warmup_);
    all.insert(all.end(), steady.begin(), steady.end());
  }
  std::ranges::sort(all);
  return all;
}

double Measurement::p95_s() const {
  return percentile(pooled_s(), 95);
}

double Measurement::p99_s() const {
  return percentile(pooled_s(), 99);
}

double Measurement::slowest_s() const {
  return pooled_s().back();
}

double Measurement::longest_tenth() const {
  const std::vector<double> sorted = pooled_s();
  const auto longest = std::ssize(sorted) - (std::ssize(sorted) + 9) / 10;
  return std::accumulate(sorted.begin() + longest, sorted.end(), 0.0) /
         std::accumulate(sorted.begin(), sorted.end(), 0.0);
}

std::size_t Measurement::steady_steps() const {
  return pooled_s().size();
}

std::size_t Measurement::outliers() const {
  return slow_outliers(pooled_s());
}

double Measurement::drift() const {
  std::vector<std::vector<double>> steps;
  for (const Start& start : starts_) {
    const auto steady = steady_part(start.ranks.front().step_s, warmup_);
    steps.emplace_back(steady.begin(), steady.end());
  }
  return drift_of(steps);
}

double Measurement::lost_share() const {
  double max = 0;
  for (const Start& start : starts_) max = std::max(max, start.lost_share);
  return max;
}

std::size_t Measurement::disturbed_starts() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      starts_, [](const Start& start) { return start.lost_share > kDisturbingShare; }));
}

std::string Measurement::trouble() const {
  const std::size_t disturbed = disturbed_starts();
  if (4 * disturbed > starts_.size()) {
    return fmt::format("{} of {} of {} lost more than {} of {} time to other programs", disturbed,
                       counted(static_cast<std::int64_t>(starts_.size()), "start"), what_.key,
                       chosen_percent(kDisturbingShare), disturbed == 1 ? "its" : "their");
  }
  return "";
}

bool Measurement::is_uncertain() const {
  return !what_.beyond_cores && !(is_certain(step_s_) && is_certain(mean_s()));
}

std::string beyond_text(const Measurement& measured) {
  return measured.what().beyond_cores ? "beyond the cores" : "";
}

}  // namespace barestep
