// The devices of one process that share a step: which, what they are called, how they exchange.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/communicator.h"
#include "core/config.h"
#include "core/device.h"
#include "parallel/data_parallel_account.h"
#include "train/step.h"

namespace barestep {

/// How numbers get from device to device.
enum class Exchanges {
  kOneMemory,  // each device can read the others' memory
  kPieces,     // between GPUs: peer copies, and gradients added up by pieces
  kNccl,       // between GPUs, each given once unless NCCL lets ranks share one
};

class DeviceSetup {
 public:
  /// Finds out what --devices or --device mean here, and --transport: kAuto, kNccl or kPeer. Opens
  /// nothing. Throws Error(kConfiguration) for what these devices cannot do.
  DeviceSetup(const DeviceConfig& config, Transport transport);

  [[nodiscard]] DeviceKind kind() const;
  [[nodiscard]] int size() const { return static_cast<int>(devices_.size()); }
  [[nodiscard]] Exchanges exchanges() const { return exchanges_; }
  [[nodiscard]] Route route() const;
  /// What carries the exchange, as a trace names it; empty for one device.
  [[nodiscard]] std::string backend() const;

  /// The devices one by one, as --devices would list them: cpu, cuda:0, ...
  [[nodiscard]] const std::vector<std::string>& devices() const { return devices_; }

  /// What the devices are called: as they were given; cpu:0, cpu:1, ... or cuda:0#0, cuda:0#1, ...
  /// where one is given several times.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

  /// Throws Error(kMemory) when the devices do not have what the programs need: `stated_bytes`
  /// each, where that is said, else what is free.
  void require_stated_memory(const StepPrograms& programs, std::int64_t stated_bytes) const;
  void require_free_memory(const StepPrograms& programs) const;

  /// Opens the first `count`, which are those that the programs use. The CPU's cores are shared;
  /// GPUs that exchange by peer copies reach each other directly from now on where they can.
  /// Throws Error(kNoDevice) when there is none of that name.
  void open(int count);
  [[nodiscard]] std::vector<Device*> opened() const;

  /// What joins them.
  [[nodiscard]] std::unique_ptr<Communicator> join(const StepPrograms& programs) const;

  /// The devices, the rows of each, and how they exchange; a line or two. For opened devices.
  [[nodiscard]] std::string text(const std::vector<Rows>& split) const;

 private:
  /// Why NCCL cannot join them; empty where it can.
  [[nodiscard]] std::string why_no_nccl() const;
  /// The numbers of the GPUs, each once.
  [[nodiscard]] std::vector<int> opened_ordinals() const;
  [[nodiscard]] std::string peers_text() const;

  DeviceConfig config_;
  std::vector<std::string> devices_;  // cpu, cuda:0, ...
  std::vector<std::string> names_;
  Exchanges exchanges_ = Exchanges::kOneMemory;
  std::vector<std::pair<int, int>> apart_;  // GPUs whose peer copies go by way of the host
  std::vector<std::unique_ptr<Device>> opened_;
};

}  // namespace barestep
