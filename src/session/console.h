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

/// A run that lost more of its time than this says so first, and draws no conclusions from it.
constexpr double kNotedShare = 0.05;

/// "Other programs took 43 % of the cores' time: times below are not this program's alone\n"; with
/// several processes, by rank. `lost` has each one's share, as lost_shares() returns it. Empty if
/// none is noted.
std::string lost_note(std::span<const double> lost);

/// The checklist for benchmarks of a run that left out `warmup_steps` and reports `steps`. `lost`
/// has the share of its time that each of its processes lost meanwhile.
std::string run_checklist(const TrainConfig& config, std::int64_t warmup_steps, std::int64_t steps,
                          std::span<const double> lost);

/// What other programs took of the run's time after its warm-up. Every rank makes one, the first of
/// those that print.
class OtherPrograms final : public Observer {
 public:
  /// Its time begins with the step `first_measured`.
  explicit OtherPrograms(std::int64_t first_measured) : first_measured_(first_measured) {}

  void on_step(const StepFigures& step) override {
    if (step.report.step + 1 == first_measured_) watch_ = LostTimeWatch();
  }
  void close() override {
    own_ = process_of_job(watch_.lost());
    shares_ = lost_shares({&own_, 1});
  }
  void gather(Group& ranks) override { shares_ = lost_shares(gather_values(ranks, own_)); }
  [[nodiscard]] std::string text() const override { return lost_note(shares_); }

  /// After close() and gather().
  [[nodiscard]] std::span<const double> shares() const { return shares_; }
  [[nodiscard]] bool disturb() const { return !text().empty(); }

 private:
  std::int64_t first_measured_;
  LostTimeWatch watch_;
  JobProcess own_;
  std::vector<double> shares_;
};

/// For --verbose: run_checklist() of a training run.
class RunChecklist final : public Observer {
 public:
  /// The arguments must outlive it.
  RunChecklist(const TrainConfig& config, const OtherPrograms& others)
      : config_(config), others_(others) {}

  void on_step(const StepFigures& step) override {
    ++(step.report.warmup ? warmup_steps_ : steps_);
  }
  [[nodiscard]] std::string text() const override {
    return run_checklist(config_, warmup_steps_, steps_, others_.shares());
  }

 private:
  const TrainConfig& config_;
  const OtherPrograms& others_;
  std::int64_t warmup_steps_ = 0;
  std::int64_t steps_ = 0;
};

class Console final : public Observer {
 public:
  /// `place` has opened its devices. `steps` is the number of steps of the whole run. All arguments
  /// must outlive this.
  Console(const TrainConfig& config, const StepPrograms& programs, const Place& place,
          const OtherPrograms& others, std::int64_t steps);

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
  const OtherPrograms& others_;
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
