// The output of a training program during the run and at its end: step lines, evaluations and the
// summary on stdout, and a progress bar on a terminal.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/group.h"
#include "core/host.h"
#include "profiler/report.h"
#include "session/observer.h"
#include "session/progress_bar.h"
#include "train/trainer.h"

namespace barestep {

class Place;

class Console final : public Observer {
 public:
  /// `place` has opened its devices. `steps` is the number of steps of the whole run. All arguments
  /// must outlive this.
  Console(const TrainConfig& config, const StepPrograms& programs, const Place& place,
          std::int64_t steps);

  void on_step(const StepFigures& step) override;
  void on_evaluation(const EvaluationReport& report) override;
  /// Removes the progress bar.
  void close() override { print(""); }
  /// The summary.
  [[nodiscard]] std::string text() const override;

  /// Prints text on stdout in place of the progress bar. If stdout has no reader and the run writes
  /// no file either, asks the run to stop.
  void print(const std::string& text);
  /// Prints a line about the run in progress, unless the run is --quiet.
  void print_line(const std::string& line);

  [[nodiscard]] const RunSummary& summary() const { return summary_; }

 private:
  /// For a step on one device whose peaks an earlier run with --profile has measured.
  [[nodiscard]] std::optional<double> floor_of_step() const;
  void draw_bar(const StepReport& report);
  [[nodiscard]] Progress progress_after(const StepReport& report) const;

  const TrainConfig& config_;
  const StepPrograms& programs_;
  const Place& place_;
  bool is_terminal_;
  bool bar_shown_ = false;
  double drawn_s_ = 0;               // when the bar was drawn
  double mean_step_s_ = 0;           // of the last steps
  std::int64_t steps_of_epoch_ = 0;  // 0 without epochs
  std::optional<double> accuracy_{};
  RunSummary summary_;
};

/// The checklist for benchmarks of a run that left out `warmup_steps` and reports `steps`. `lost`
/// has the time that each of its processes lost meanwhile.
std::string run_checklist(const TrainConfig& config, std::int64_t warmup_steps, std::int64_t steps,
                          std::span<const LostTime> lost);

/// For --verbose: run_checklist() of a training run.
class RunChecklist final : public Observer {
 public:
  /// Every rank makes one. `config` must outlive it.
  explicit RunChecklist(const TrainConfig& config) : config_(config) {}

  void on_step(const StepFigures& step) override;
  void close() override { lost_ = {watch_.lost()}; }
  void gather(Group& ranks) override { lost_ = gather_values(ranks, watch_.lost()); }
  [[nodiscard]] std::string text() const override {
    return run_checklist(config_, warmup_steps_, steps_, lost_);
  }

 private:
  const TrainConfig& config_;
  LostTimeWatch watch_;  // of this process, since its warm-up
  std::int64_t warmup_steps_ = 0;
  std::int64_t steps_ = 0;
  std::vector<LostTime> lost_;
};

/// The results of a run other than its times: the memory it used and the model's last results.
class Outcome final : public Observer {
 public:
  /// `names` are the devices' names. `programs` must outlive it.
  Outcome(const StepPrograms& programs, std::vector<std::string> names)
      : programs_(programs), names_(std::move(names)) {}

  void on_evaluation(const EvaluationReport& report) override { accuracy_ = report.accuracy; }
  [[nodiscard]] std::string text() const override;

 private:
  const StepPrograms& programs_;
  std::vector<std::string> names_;
  std::optional<double> accuracy_;
};

}  // namespace barestep
