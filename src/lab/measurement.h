// All starts of one case of an experiment, and what they come to.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lab/samples.h"
#include "lab/start.h"
#include "lab/workload.h"

namespace barestep {

/// One thing to measure.
struct Case {
  std::string key;  // names it among the cases of its experiment, and its files
  Workload workload{};
  bool beyond_cores = false;  // more threads than cores, so it tells nothing of scaling
  bool hash_weights = false;  // the weights at the end are wanted
  bool record_ops = false;    // and the time of each op
};

class Measurement {
 public:
  /// At least one start. Steps before the steady state are found here, by the step times of rank 0.
  Measurement(Case what, std::vector<Start> starts);

  [[nodiscard]] const Case& what() const { return what_; }
  [[nodiscard]] const Workload& workload() const { return what_.workload; }
  [[nodiscard]] const std::vector<Start>& starts() const { return starts_; }

  /// As the trainer resolved it, JSON on one line; empty for PyTorch's scripts.
  [[nodiscard]] const std::string& configuration() const { return starts_.front().configuration; }

  /// Of the steady steps; rank 0's, as the trainers print them.
  [[nodiscard]] const Estimate& step_s() const { return step_s_; }
  [[nodiscard]] double p95_s() const;
  [[nodiscard]] double p99_s() const;
  [[nodiscard]] Estimate samples_per_s() const;

  /// Median over the steady steps; 0 for a phase that the trainer does not know.
  [[nodiscard]] double phase_s(std::string_view phase, int rank = 0) const;
  [[nodiscard]] double step_s_of(int rank) const;
  /// Of the host, until a step's work was queued; median.
  [[nodiscard]] double queued_s() const;
  [[nodiscard]] int ranks() const { return static_cast<int>(starts_.front().ranks.size()); }

  /// Steps before the steady state, the most of any start.
  [[nodiscard]] std::size_t warmup_steps() const;
  [[nodiscard]] std::size_t steady_steps() const;
  [[nodiscard]] std::size_t outliers() const;
  /// Starts whose level changed within the steady state.
  [[nodiscard]] std::size_t drifting_starts() const;
  /// The most that others took of the cores in any start.
  [[nodiscard]] double others_share() const;

  /// Steady step times of each start, rank 0's.
  [[nodiscard]] const std::vector<std::vector<double>>& steady_s() const { return steady_s_; }

 private:
  [[nodiscard]] std::vector<double> pooled_s() const;
  [[nodiscard]] std::vector<double> steady_of(std::size_t start,
                                              const std::vector<double>& values) const;

  Case what_;
  std::vector<Start> starts_;
  std::vector<std::size_t> begin_;  // of the steady state, by start
  std::vector<std::vector<double>> steady_s_;
  Estimate step_s_;
};

/// Above this share of all cores, other programs disturb a measurement.
constexpr double kDisturbingShare = 0.1;

/// Empty, or why figures of these cases must not be trusted: "INVALID: ...".
std::string verdict_of(const std::vector<Measurement>& cases);

}  // namespace barestep
