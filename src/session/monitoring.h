// --monitor: observes the machine during a run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/device.h"
#include "profiler/monitor.h"
#include "session/observer.h"

namespace barestep {

class Console;
class MetricsLog;

/// The parts of the machine that a process samples.
struct MonitorScope {
  std::vector<const Device*> devices;  // only GPUs are sampled
  bool host = true;
  int rank = 0;
};

class Monitoring final : public Observer {
 public:
  /// Starts sampling. `console` prints lines and `metrics` receives records; both may be null,
  /// precede this in the run's list, and must outlive it. The summary covers the steps from
  /// `first_counted` on.
  Monitoring(const MonitorScope& scope, std::int64_t first_counted, Console* console,
             MetricsLog* metrics);

  void on_step(const StepFigures& step) override;
  /// Stops sampling.
  void close() override;
  void gather(Group& ranks) override;
  /// The summary for all ranks, and what could not be sampled.
  [[nodiscard]] std::string text() const override { return text_; }

  [[nodiscard]] const Monitor& monitor() const { return monitor_; }

 private:
  void show_new();

  Console* console_;
  MetricsLog* metrics_;
  int rank_;
  std::int64_t first_counted_;
  std::vector<std::string> notes_;
  Monitor monitor_;
  std::map<const MonitorSource*, double> next_line_s_{};
  int lines_ = 0;
  std::int64_t samples_ = 0;
  std::string text_;
};

}  // namespace barestep
