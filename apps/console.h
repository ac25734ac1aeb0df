// What a training program shows while it runs: step lines and evaluations on stdout, a progress bar
// on a terminal, metrics in a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/config.h"
#include "core/output_file.h"
#include "train/report.h"
#include "train/trainer.h"

namespace barestep {

class Console final : public TrainObserver {
 public:
  /// Opens the metrics file, if one is asked for; throws Error(kCannotCreate). `steps` are those of
  /// the whole run.
  Console(const TrainConfig& config, std::int64_t steps);

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;

  /// Removes the progress bar, closes the metrics, and prints the summary. Throws
  /// Error(kInputOutput) if the metrics may be incomplete.
  void finish(const Trainer& trainer, const Device& device);

  [[nodiscard]] const RunSummary& summary() const { return summary_; }

 private:
  void print_line(const std::string& line);
  void draw_bar(const StepReport& report);

  const TrainConfig& config_;
  bool is_terminal_;
  bool bar_shown_ = false;
  std::optional<OutputFile> metrics_;
  RunSummary summary_;
  std::optional<double> accuracy_;
};

}  // namespace barestep
