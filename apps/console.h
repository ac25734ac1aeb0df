// What a training program shows while it runs: step lines and evaluations on stdout, a progress bar
// on a terminal, metrics and TensorBoard's event files. None of them ends a run when it cannot be
// written: the run goes on without it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "core/output_file.h"
#include "profiler/report.h"
#include "run_file.h"
#include "scalar_log.h"
#include "train/trainer.h"

namespace barestep {

class Console final : public TrainObserver {
 public:
  /// Opens the metrics and event files that are asked for; throws Error(kCannotCreate). `config` is
  /// that of the run, resolved, with which the metrics begin; it must outlive this. `steps` are
  /// those of the whole run.
  Console(TrainerKind trainer, const TrainConfig& config, std::int64_t steps);

  void on_step(const StepReport& report) override { show_step(StepFigures(report)); }
  void show_step(const StepFigures& step);
  void on_evaluation(const EvaluationReport& report) override;

  /// A step as another rank met it, for the metrics only.
  void on_step_of(int rank, const StepFigures& step);

  /// Removes the progress bar and prints the summary, `more` following it. `names` are those of
  /// the devices, where there are more than `device`.
  void show_summary(const Trainer& trainer, const Device& device, const std::string& more = "",
                    std::vector<std::string> names = {});

  /// Text on stdout, in place of the progress bar. Where nobody can read it and the run writes no
  /// file either, the run is asked to stop.
  void print(const std::string& text);
  void print_line(const std::string& line) { print(line + "\n"); }

  /// A line of JSON into the metrics, if there are any.
  void write_record(const std::string& record);

  /// Closes metrics and event files. Throws Error(kInputOutput) if one may be incomplete.
  void close();

  [[nodiscard]] const RunSummary& summary() const { return summary_; }

 private:
  /// Of a step on one device whose peaks an earlier run with --profile has measured.
  [[nodiscard]] std::optional<double> floor_of(const StepPrograms& programs,
                                               const Device& device) const;
  void draw_bar(const StepReport& report);

  std::string_view program_;
  const TrainConfig& config_;
  bool is_terminal_;
  bool bar_shown_ = false;
  std::optional<RunFile<OutputFile>> metrics_;
  std::optional<RunFile<ScalarLog>> scalars_;
  RunSummary summary_;
  std::optional<double> accuracy_;
};

}  // namespace barestep
