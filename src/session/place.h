// Where the steps of a run are carried out: on one device, on several of this process, or on one of
// each rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/config.h"
#include "core/device.h"
#include "data/dataset.h"
#include "session/monitoring.h"
#include "session/observer.h"
#include "session/profiling.h"
#include "train/memory_check.h"
#include "train/step.h"

namespace barestep {

/// Called in the order of its methods, once for each run; settle() begins another one.
class Place {
 public:
  virtual ~Place() = default;

  [[nodiscard]] virtual TrainerKind trainer() const = 0;

  /// Makes a configuration that was asked for that of this process: its devices, its trace file.
  /// Opens nothing. Throws Error(kConfiguration) for what these devices cannot do.
  virtual void settle(TrainConfig& config) = 0;
  [[nodiscard]] virtual DeviceKind kind() const = 0;
  /// Whether it was left to us to take GPUs or not.
  [[nodiscard]] virtual bool takes_any_kind() const = 0;

  /// Throws what barestep::require_outputs() throws, of the files that this process writes.
  virtual void require_outputs(const TrainConfig& config) const = 0;

  /// What the programs of this process are built from; `dataset` is null for random data. The
  /// scheme is null for none.
  [[nodiscard]] virtual StepSpec spec_of(const TrainConfig& config,
                                         const Dataset* dataset) const = 0;
  [[nodiscard]] virtual std::unique_ptr<Scheme> new_scheme(const TrainConfig& config) const = 0;

  /// The memories of devices that have `bytes` each.
  [[nodiscard]] virtual std::vector<MemoryPool> stated_memory(std::int64_t bytes) const = 0;

  /// Opens what the programs run on, and enters in `config` what it took. Throws Error: kNoDevice;
  /// kMemory where the programs do not fit, unless --memory stated how much there is.
  virtual void open(TrainConfig& config, const StepPrograms& programs) = 0;

  /// The ranks tell each other what they are about to do. Throws Error(kConfiguration), on all,
  /// that lists what differs. Before anything was opened too. Every rank calls it. Blocks.
  virtual void require_agreement(const TrainConfig& /*config*/, const StepPrograms& /*programs*/) {}

  /// Joins the devices. Every rank calls it. Blocks.
  virtual void join(const TrainConfig& /*config*/, const StepPrograms& /*programs*/) {}

  /// Those opened; of the programs, by index.
  [[nodiscard]] virtual std::vector<Device*> devices() const = 0;
  /// What reports call the devices: all that were asked for, opened or not. Empty where there is
  /// one and it is not open.
  [[nodiscard]] virtual std::vector<std::string> names() const = 0;
  /// What carries collectives once joined; null for none.
  [[nodiscard]] virtual Communicator* communicator() const { return nullptr; }

  /// What is profiled and monitored here, once joined.
  [[nodiscard]] virtual ProfilingScope profiling_scope() const = 0;
  [[nodiscard]] virtual MonitorScope monitor_scope() const = 0;

  /// Of several devices or ranks: how many, and how they exchange what; a line or two.
  [[nodiscard]] virtual std::string text(const TrainConfig& /*config*/,
                                         const StepPrograms& /*programs*/) const {
    return "";
  }
  /// The rows of a step that each device gets, a line for each: what --show-split is for.
  [[nodiscard]] virtual std::string split_lines(std::int64_t /*step_rows*/) const { return ""; }
  /// What the exchange costs, for a run of so many steps; null for none. `programs` must outlive
  /// it.
  [[nodiscard]] virtual std::unique_ptr<Observer> new_account(const StepPrograms& /*programs*/,
                                                              std::int64_t /*steps*/) const {
    return nullptr;
  }
};

class RankJob;

/// --device, in this process.
std::unique_ptr<Place> one_device();

/// --devices, or all that --device allows; joined by what --transport asks for.
std::unique_ptr<Place> several_devices();

/// The device of this rank of `job`, which must outlive it: a GPU by its place on the host, or its
/// share of the CPUs.
std::unique_ptr<Place> device_of_rank(RankJob& job);

}  // namespace barestep
