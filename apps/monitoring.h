// --monitor: what the machine does while a run goes on.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "console.h"
#include "core/device.h"
#include "profiler/monitor.h"
#include "train/trainer.h"

namespace barestep {

/// What a process is to look at.
struct MonitorScope {
  std::vector<const Device*> devices;  // GPUs among them are looked at
  bool host = true;
  int rank = 0;
};

class Monitoring final : public TrainObserver {
 public:
  /// Looks from now on. `told` hears of everything first; `console`, if it is not null, shows lines
  /// and writes records. Both must outlive it. The summary is about the steps from `first_counted`.
  Monitoring(const MonitorScope& scope, std::int64_t first_counted, Console* console,
             TrainObserver& told);

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;
  void on_batch() override { told_.on_batch(); }

  /// Ends it, once the run is over. Returns the summary, and what could not be looked at; empty
  /// where there is neither.
  std::string finish();

  [[nodiscard]] const Monitor& monitor() const { return monitor_; }

 private:
  void show_new();

  TrainObserver& told_;
  Console* console_;
  int rank_;
  std::int64_t first_counted_;
  std::vector<std::string> notes_;
  Monitor monitor_;
  std::vector<double> shown_s_;  // of each source, when its last line was
  int lines_ = 0;
  std::int64_t samples_ = 0;
};

}  // namespace barestep
