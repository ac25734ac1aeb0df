// The processes of a run, as one of them sees them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/communicator.h"
#include "core/config.h"
#include "core/stop_request.h"
#include "parallel/job/flight_record.h"

namespace barestep {

/// This process alone, until a class says otherwise.
class Job {
 public:
  virtual ~Job() = default;

  /// What joins the processes of a run, each of which is a rank; null for one that is alone.
  [[nodiscard]] virtual Communicator* ranks() { return nullptr; }
  /// The same ranks for the host calls of one other thread; null for a process that is alone.
  [[nodiscard]] virtual Communicator* background_ranks() { return nullptr; }
  /// Whether this process prints what concerns all ranks.
  [[nodiscard]] bool is_first() { return ranks() == nullptr || ranks()->rank() == 0; }

  /// Does `work` on every rank. Where it fails on any, it ends on all with QuietEnd, and the first
  /// rank that failed says why. Every rank calls it. Blocks.
  virtual void together(const std::function<void()>& work) { work(); }

  /// Does `work`, in which ranks wait for each other: one that fails ends them all.
  virtual void end_all_on_error(const std::function<void()>& work) { work(); }

  /// What this process does from now on, for the watchdog.
  virtual void enter(Activity /*activity*/, std::int64_t /*step*/ = -1) {}

  /// Signals that ask to stop end the run after a step from now on, and not at once.
  virtual void take_signals() { take_stop_signals(SecondSignal::kEndsAtOnce); }
};

/// This process alone, under a watchdog: a device that hangs would keep it for ever. It ends it
/// with one line of `program` and code 75 when a step lasts longer than --timeout.
std::unique_ptr<Job> watched_job(const char* program, const TrainConfig& config);

}  // namespace barestep
