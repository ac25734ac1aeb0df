// What a training program shows while it runs and at its end: step lines, evaluations and the
// summary on stdout, and a progress bar on a terminal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "profiler/report.h"
#include "session/observer.h"
#include "train/trainer.h"

namespace barestep {

class Place;

class Console final : public Observer {
 public:
  /// `place` has opened its devices. `steps` are those of the whole run. All that is referred to
  /// must outlive it.
  Console(const TrainConfig& config, const StepPrograms& programs, const Place& place,
          std::int64_t steps);

  void on_step(const StepFigures& step) override;
  void on_evaluation(const EvaluationReport& report) override;
  /// Removes the progress bar.
  void close() override { print(""); }
  /// The summary.
  [[nodiscard]] std::string text() const override;

  /// Text on stdout, in place of the progress bar. If it cannot be read and the run writes no
  /// file either, the run is asked to stop.
  void print(const std::string& text);
  void print_line(const std::string& line) { print(line + "\n"); }

  [[nodiscard]] const RunSummary& summary() const { return summary_; }

 private:
  /// Of a step on one device whose peaks an earlier run with --profile has measured.
  [[nodiscard]] std::optional<double> floor_of_step() const;
  void draw_bar(const StepReport& report);

  const TrainConfig& config_;
  const StepPrograms& programs_;
  const Place& place_;
  bool is_terminal_;
  bool bar_shown_ = false;
  RunSummary summary_;
};

/// What a run comes to, besides its times: the memory it took, and how well the model did last.
class Outcome final : public Observer {
 public:
  /// `names` are those of the devices. `programs` must outlive it.
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
