// All starts of one case of an experiment, and the figures computed from them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/predict/workload.h"
#include "lab/report/samples.h"
#include "lab/study/start.h"
#include "profiler/checklist.h"

namespace barestep {

/// One thing to measure.
struct Case {
  std::string key;  // names the case within its experiment, and its files
  Workload workload{};
  bool beyond_cores = false;  // more threads than cores: no evidence about scaling
  bool record_ops = false;    // record the time of each op
  Start (*made)(const Case& what, int start) = nullptr;  // makes one in this process, if not null
};

/// The command of a start of this case: that of its workload, and what else changes its steps.
std::string command_line_of(const Case& what);

/// Figures `by start` are computed once per start, in the order of rounds, over its steady steps.
/// The time of a step is their median; whatever depends on all of them (throughput, speed-up, the
/// parts of a step) comes from their sum, so that a few long steps count.
class Measurement {
 public:
  /// At least one start. The constructor determines the warm-up from rank 0's step times.
  Measurement(Case what, std::vector<Start> starts);

  [[nodiscard]] const Case& what() const { return what_; }
  [[nodiscard]] const Workload& workload() const { return what_.workload; }
  [[nodiscard]] const std::vector<Start>& starts() const { return starts_; }

  /// The configuration as the trainer resolved it, JSON on one line; empty for PyTorch's scripts.
  [[nodiscard]] const std::string& configuration() const { return starts_.front().configuration; }

  /// Median step time by start; rank 0's is what the trainers print.
  [[nodiscard]] std::vector<double> step_s_by_start(int rank = 0) const;
  [[nodiscard]] std::vector<double> mean_s_by_start(int rank = 0) const;
  /// The time of all steps divided by their samples.
  [[nodiscard]] std::vector<double> sample_s_by_start() const;
  /// Mean over the steps; 0 for a phase that the trainer does not have. The phases add up to the
  /// mean step.
  [[nodiscard]] std::vector<double> phase_s_by_start(std::string_view phase, int rank = 0) const;
  /// The same for the sum of several phases.
  [[nodiscard]] std::vector<double> phases_s_by_start(
      std::span<const std::string_view> phases) const;
  /// Host time until a step's work was queued, in the median step.
  [[nodiscard]] std::vector<double> queued_s_by_start() const;
  /// How far the 95th percentile of the steps exceeds their median, relative to the median.
  [[nodiscard]] std::vector<double> spread_by_start() const;
  /// Standard deviation of the steps; variation_by_start() divides it by their mean.
  [[nodiscard]] std::vector<double> deviation_s_by_start() const;
  [[nodiscard]] std::vector<double> variation_by_start() const;
  /// Total of all steps, warm-up included.
  [[nodiscard]] std::vector<double> total_s_by_start() const;

  /// The case's recorded ops, if it records them: each op's median over the starts, the longest
  /// first.
  [[nodiscard]] std::vector<OpTime> ops() const;

  [[nodiscard]] const Estimate& step_s() const { return step_s_; }
  [[nodiscard]] Estimate mean_s(int rank = 0) const;
  [[nodiscard]] Estimate samples_per_s() const;
  /// Median over the starts.
  [[nodiscard]] double phase_s(std::string_view phase, int rank = 0) const;

  /// Over the steady steps of all starts, without an interval. A 99th percentile is meaningful from
  /// 299 steps on.
  [[nodiscard]] double p95_s() const;
  [[nodiscard]] double p99_s() const;
  [[nodiscard]] double slowest_s() const;
  /// The share of the longest tenth of the steps in the time of all.
  [[nodiscard]] double longest_tenth() const;
  [[nodiscard]] bool has_p99() const { return steady_steps() >= 299; }

  [[nodiscard]] int ranks() const { return static_cast<int>(starts_.front().ranks.size()); }

  /// Steps before the steady state, the same in all starts (warmup_length()).
  [[nodiscard]] std::size_t warmup_steps() const { return warmup_; }
  [[nodiscard]] std::size_t steady_steps() const;
  [[nodiscard]] std::size_t outliers() const;
  /// drift_of() of the steady steps.
  [[nodiscard]] double drift() const;
  /// The largest share of time that any start lost to other programs.
  [[nodiscard]] double lost_share() const;
  [[nodiscard]] std::size_t disturbed_starts() const;
  /// Empty, or why no time must be trusted: too many disturbed starts.
  [[nodiscard]] std::string trouble() const;
  /// Whether its step time itself is uncertain (is_certain()), except for ranks beyond the cores.
  /// Its ratio to another case in the same rounds may be certain nevertheless.
  [[nodiscard]] bool is_uncertain() const;

 private:
  /// `figure` receives a rank's values of its steady steps, which `take` finds in its steps.
  template <class Take, class Figure>
  [[nodiscard]] std::vector<double> by_start(int rank, const Take& take,
                                             const Figure& figure) const;
  [[nodiscard]] std::vector<double> pooled_s() const;

  Case what_;
  std::vector<Start> starts_;
  std::size_t warmup_ = 0;
  Estimate step_s_;
};

/// What tables and plots say of a case beyond the cores: "beyond the cores"; empty for others.
std::string beyond_text(const Measurement& measured);

}  // namespace barestep
