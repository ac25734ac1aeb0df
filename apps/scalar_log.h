// --tensorboard: loss, step time, throughput and utilisation of every step as event files.
#pragma once

#include "core/config.h"
#include "profiler/event_file.h"
#include "train/trainer.h"

namespace barestep {

class ScalarLog final : public TrainObserver {
 public:
  /// Makes the file in `folder`; `told`, which must outlive it, hears of everything first. Throws
  /// Error(kCannotCreate).
  ScalarLog(const std::filesystem::path& folder, TrainObserver& told)
      : told_(told), file_(folder) {}

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;

  /// Throws Error(kInputOutput) if the file may be incomplete.
  void close() { file_.close(); }

 private:
  TrainObserver& told_;
  EventFile file_;
  std::int64_t last_step_ = 0;
};

}  // namespace barestep
