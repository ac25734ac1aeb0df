// --monitor: what the machine does while a run goes on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/device.h"
#include "profiler/monitor.h"
#include "session/observer.h"

namespace barestep {

class Console;
class MetricsLog;

/// What a process samples.
struct MonitorScope {
  std::vector<const Device*> devices;  // GPUs among them are looked at
  bool host = true;
  int rank = 0;
};

class Monitoring final : public Observer {
 public:
  /// Looks from now on. `console` shows lines and `metrics` takes records; both may be null, come
  /// before it in the run's list, and must outlive it. The summary is about the steps from
  /// `first_counted`.
  Monitoring(const MonitorScope& scope, std::int64_t first_counted, Console* console,
             MetricsLog* metrics);

  void on_step(const StepFigures& step) override;
  /// Stops looking.
  void close() override;
  void gather(Communicator& ranks) override;
  /// The summary, and what could not be looked at; of all ranks.
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
  std::vector<double> shown_s_;  // of each source, when its last line was
  int lines_ = 0;
  std::int64_t samples_ = 0;
  std::string text_;
};

}  // namespace barestep
