// Where a run's steps are executed: on one device, on several devices of this process, or on one
// device in each rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/transport.h"
#include "data/dataset.h"
#include "parallel/schemes/scheme_of.h"
#include "session/affinity.h"
#include "session/monitoring.h"
#include "session/observer.h"
#include "session/profiling.h"
#include "train/memory_check.h"
#include "train/step.h"

namespace barestep {

/// Methods are called in their order here, once per run; resolve_config() starts another run.
class Place {
 public:
  virtual ~Place() = default;

  /// Adapts a configuration to this process: its devices, its trace file. Opens nothing. Throws
  /// Error(kConfiguration) if these devices cannot do what it requests.
  virtual void resolve_config(TrainConfig& config) = 0;
  [[nodiscard]] virtual DeviceKind kind() const = 0;
  /// How many processes or devices share a step.
  [[nodiscard]] virtual int ranks() const { return 1; }
  /// Whether the choice between CPU and GPUs was left to the program.
  [[nodiscard]] virtual bool takes_any_kind() const = 0;

  /// Throws what barestep::require_outputs() throws for the files that this process writes.
  virtual void require_outputs(const TrainConfig& config) const = 0;

  /// The spec and the scheme for the programs of this process; `dataset` is null for random data. A
  /// null scheme means none.
  [[nodiscard]] virtual StepSpec spec_of(const TrainConfig& config, const Dataset* dataset) const {
    return barestep::spec_of(config, kind(), dataset);
  }
  [[nodiscard]] virtual std::unique_ptr<Scheme> new_scheme(const TrainConfig& config) const {
    return scheme_of(config);
  }

  /// For several ranks: checks their programs together and says so, for --explain; else empty.
  [[nodiscard]] virtual std::string check_together(const TrainConfig& /*config*/,
                                                   const Dataset* /*dataset*/) const {
    return "";
  }

  /// For the stages of a pipeline on several ranks: what a rank of each needs, for --plan; else
  /// empty.
  [[nodiscard]] virtual std::string memory_of_stages(const TrainConfig& /*config*/,
                                                     const Dataset* /*dataset*/) const {
    return "";
  }

  /// The memory of the devices, if each has `bytes`.
  [[nodiscard]] virtual std::vector<MemoryPool> stated_memory(std::int64_t bytes) const {
    return {{.name = "the device that --memory states", .kind = kind(), .available_bytes = bytes}};
  }

  /// Opens the devices for the programs, and enters in `config` those it opened. Throws Error:
  /// kNoDevice; kMemory if the programs do not fit, unless --memory set the size.
  virtual void open(TrainConfig& config, const StepPrograms& programs) = 0;

  /// The CPUs of a device, the most that one of this process has.
  [[nodiscard]] virtual int cpus() const = 0;

  /// Where the threads of each device of this process run, by --affinity. A GPU's place is known
  /// once it is open.
  [[nodiscard]] virtual std::vector<Placement> placements(const TrainConfig& config) const = 0;

  /// The ranks exchange their plans. Throws Error(kConfiguration) on all ranks, listing the
  /// differences. May be called before anything is opened. Every rank calls it. Blocks.
  virtual void require_agreement(const TrainConfig& /*config*/, const StepPrograms& /*programs*/) {}

  /// Connects the devices. Every rank calls it. Blocks.
  virtual void join(const TrainConfig& /*config*/, const StepPrograms& /*programs*/) {}

  /// The open devices, by their index in the programs.
  [[nodiscard]] virtual std::vector<Device*> devices() const = 0;
  /// The devices' names in reports, for all requested devices, open or not. Empty for a single
  /// device that is not open.
  [[nodiscard]] virtual std::vector<std::string> names() const {
    const Device* const device = devices().front();
    if (device == nullptr) return {};
    return {std::string(device->name())};
  }
  /// Of collectives, once joined; null if there is none.
  [[nodiscard]] virtual Transport* transport() const { return nullptr; }

  /// What is profiled and monitored here, once joined.
  [[nodiscard]] virtual ProfilingScope profiling_scope() const = 0;
  [[nodiscard]] virtual MonitorScope monitor_scope() const = 0;

  /// For several devices or ranks: how many there are, what they exchange, and how; a line or two.
  [[nodiscard]] virtual std::string text(const TrainConfig& /*config*/,
                                         const StepPrograms& /*programs*/) const {
    return "";
  }
  /// The rows of a step for each device, one line each, for --show-split.
  [[nodiscard]] virtual std::string split_lines(std::int64_t /*step_rows*/) const { return ""; }
  /// Measures the cost of the exchange in a run of `steps` steps; null if there is no exchange.
  /// `programs` must outlive it.
  [[nodiscard]] virtual std::unique_ptr<Observer> new_account(const StepPrograms& /*programs*/,
                                                              std::int64_t /*steps*/) const {
    return nullptr;
  }
};

class RankJob;

/// A place with the device of --device.
std::unique_ptr<Place> one_device();

/// A place with the devices of --devices, or all that --device allows, connected as --transport
/// asks.
std::unique_ptr<Place> several_devices();

/// A place with the device of this rank of `job`, which must outlive it: a GPU chosen by the rank's
/// number on its host, or a share of the CPUs.
std::unique_ptr<Place> device_of_rank(RankJob& job);

}  // namespace barestep
