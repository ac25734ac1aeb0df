// The processes of a run, as seen from one of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/config.h"
#include "core/group.h"
#include "core/stop_request.h"
#include "parallel/job/flight_record.h"

namespace barestep {

/// A single process, unless a derived class overrides this.
class Job {
 public:
  virtual ~Job() = default;

  /// The run's processes, each of which is a rank; null for a single process.
  [[nodiscard]] virtual Group* ranks() { return nullptr; }
  /// The same ranks, for host calls from one other thread; null for a single process.
  [[nodiscard]] virtual Group* background_ranks() { return nullptr; }
  /// The number of the run's processes on this host.
  [[nodiscard]] virtual int processes_of_host() const { return 1; }
  /// Whether this process prints messages that concern all ranks.
  [[nodiscard]] bool is_first() { return ranks() == nullptr || ranks()->rank() == 0; }

  /// Runs `work` on every rank. If it fails on any, throws SilentExit on all, and the first rank
  /// that failed reports why. Every rank calls it. Blocks.
  virtual void together(const std::function<void()>& work) { work(); }

  /// Runs `work`, in which ranks wait for each other. If it fails on one, that rank ends them all.
  virtual void end_all_on_error(const std::function<void()>& work) { work(); }

  /// Informs the watchdog of this process's current activity.
  virtual void enter(Activity /*activity*/, std::int64_t /*step*/ = -1) {}

  /// From now on, signals that request a stop end the run after a step, not at once.
  virtual void take_signals() { take_stop_signals(SecondSignal::kEndsAtOnce); }
};

/// A single process with a watchdog, since a device that hangs would never return. If a step takes
/// longer than --timeout, the watchdog ends the process with one line of `program` and code 75.
std::unique_ptr<Job> watched_job(const char* program, const TrainConfig& config);

}  // namespace barestep
