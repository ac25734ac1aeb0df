// What a rank sets up before ranks meet in a step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "data/dataset.h"
#include "monitoring.h"
#include "parallel/ddp.h"
#include "parallel/flight_record.h"
#include "parallel/gpu_places.h"
#include "parallel/mpi_communicator.h"
#include "profiling.h"
#include "train/step.h"
#include "train/trainer.h"

namespace barestep {

/// From the command line to a device. `place` must outlive it.
class RankSetup {
 public:
  /// Works on this rank alone. Throws Error.
  RankSetup(const char* program, const std::vector<std::string>& arguments, const MpiRank& place);

  /// Ranks tell each other which GPUs they have, by which the transport is chosen. Throws
  /// Error(kConfiguration) where they differ in build, libraries, options, seed, data or kind of
  /// device, and lists what differs, or where NCCL was asked for and cannot join their GPUs;
  /// Error(kMemory) where NCCL's own memory does not fit beside the run's. Every rank calls it.
  void require_agreement();

  [[nodiscard]] bool is_first() const { return ranks_.rank() == 0; }
  /// What to print instead of training; may be empty.
  [[nodiscard]] const std::string& answer() const { return answer_; }
  [[nodiscard]] const TrainConfig& config() const { return config_; }
  [[nodiscard]] const StepPrograms& programs() const { return *programs_; }
  [[nodiscard]] Device& device() const { return *device_; }
  /// Null for random data.
  [[nodiscard]] const Dataset* data() const { return dataset_ ? &*dataset_ : nullptr; }

  /// The weights of --load, which rank 0 has read. Once; every rank calls it. Blocks.
  FlatWeights weights_of_all();

  /// Joins the ranks' devices by what --transport asks for; what they carry out is entered in
  /// `record`. Every rank calls it. Blocks.
  void connect(FlightRecord& record);

  /// What carries collectives, once connected.
  [[nodiscard]] Communicator& transport() const { return *transport_; }

  /// What --profile and --trace are about on this rank, once connected.
  [[nodiscard]] ProfilingScope profiling_scope() const;

  /// Training steps of the run.
  [[nodiscard]] std::int64_t steps() const;

  /// On device() and transport(). `profiler` may be null.
  std::unique_ptr<Trainer> new_trainer(StepProfiler* profiler);

  /// This rank's part of what --monitor looks at: each host and each GPU by one of its ranks.
  [[nodiscard]] MonitorScope monitor_scope() const;

  /// On rank 0 what all ranks have to say, where they do; empty on the others. Every rank calls it.
  /// Blocks.
  [[nodiscard]] std::string text_of_all(const std::string& mine) const;

  /// How many ranks there are, and how they reduce their gradients; a line or two.
  [[nodiscard]] std::string text() const;

 private:
  /// Throws what require_outputs() throws. `traces` are those of all ranks.
  void require_files(const std::vector<std::filesystem::path>& traces) const;
  void build_programs();
  void open_device();
  void require_nccl() const;
  [[nodiscard]] bool uses_nccl() const;
  [[nodiscard]] std::string exchange_text() const;
  [[nodiscard]] std::string transport_name() const;

  Communicator& ranks_;
  const MpiRank& place_;
  TrainConfig config_;
  std::string answer_;
  DeviceKind kind_ = DeviceKind::kCpu;
  std::optional<Dataset> dataset_;
  std::unique_ptr<Scheme> scheme_;
  std::unique_ptr<StepPrograms> programs_;
  FlatWeights loaded_;
  std::unique_ptr<Device> device_;
  std::vector<RankGpu> gpus_;                    // of all ranks, once they agree
  std::unique_ptr<Communicator> own_transport_;  // where it is not MPI itself
  Communicator* transport_ = nullptr;
};

}  // namespace barestep
