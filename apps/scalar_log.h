// --tensorboard: loss, step time, throughput and utilisation of every step as event files.
#pragma once

#include <filesystem>

#include "profiler/event_file.h"
#include "profiler/report.h"

namespace barestep {

class ScalarLog {
 public:
  /// Makes the file in `folder`. Throws Error(kCannotCreate).
  explicit ScalarLog(const std::filesystem::path& folder) : file_(folder) {}

  /// Both throw Error(kInputOutput).
  void add(const StepFigures& step);
  void add(const EvaluationReport& report);

  /// Throws Error(kInputOutput) if the file may be incomplete.
  void close() { file_.close(); }

 private:
  EventFile file_;
  std::int64_t last_step_ = 0;
};

}  // namespace barestep
