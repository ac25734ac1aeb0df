// The profiler of a run: decides how finely steps are measured, keeps some of them, and reports.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "profiler/monitor.h"
#include "session/observer.h"
#include "train/step_marks.h"

namespace barestep {

class OtherPrograms;

/// What is profiled.
struct ProfilingScope {
  std::string program{};           // e.g. "mlp_ddp"
  std::vector<Device*> devices{};  // by their index in the programs
  std::string backend{};           // transport of the collectives: "mpi", "nccl"; may be empty
};

class Profiling : public Observer, public StepProfiler {
 public:
  /// Adds the monitor's counters to the traces; it must outlive this.
  virtual void show(const Monitor& monitor) = 0;

  /// Leaves conclusions out where other programs disturbed the run; `others` must outlive this.
  virtual void consider(const OtherPrograms& others) = 0;

  /// Call when the trainer is set up, which belongs to no step.
  virtual void begin() = 0;
};

/// Allocates the memory for all steps that are kept. For --profile on rank 0, measures the device's
/// peaks unless an earlier run has. `done` is the number of steps done before this run resumed. All
/// arguments must outlive the result. Throws Error(kConfiguration) for steps that the run does not
/// have, and for a graph whose ops cannot be measured separately.
std::unique_ptr<Profiling> new_profiling(const TrainConfig& config, const StepPrograms& programs,
                                         const ProfilingScope& scope, std::int64_t done = 0);

}  // namespace barestep
