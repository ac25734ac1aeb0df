// The costs of DataParallel, by device: whether device 0 has a higher load, and how long a step's
// exchanges take.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/index.h"
#include "core/plan.h"
#include "core/program.h"
#include "model/parameters.h"
#include "train/step.h"

namespace barestep {

struct StepReport;  // train/trainer.h

/// The exchanges between devices. Their nodes are of phase kCommunication and run on the
/// communication lanes.
enum class Exchange { kBroadcast, kScatter, kGather, kReduce };
template <>
inline constexpr std::string_view kNamesOf<Exchange>[] = {"broadcast", "scatter", "gather",
                                                          "reduce"};

Exchange exchange_of(const Node& node);

/// The paths of collectives: between device 0 and each other device, or from device to device.
enum class Route { kStar, kRing };

/// The bytes that a step moves between devices.
struct Traffic {
  std::vector<std::int64_t> in_bytes, out_bytes;  // by device
  EnumArray<Exchange, std::int64_t> bytes{};      // by exchange; sum over devices
};

/// The traffic of a program over at most `devices` devices.
Traffic traffic_of(const Program& program, int devices, Route route);

/// Collects the steps after warm-up. Allocates only during construction.
class DataParallelAccount {
 public:
  /// `split` has the rows of each device with any rows; `names` are the names of all requested
  /// devices, with and without rows. `programs` must outlive it.
  DataParallelAccount(const StepPrograms& programs, std::vector<Rows> split,
                      std::vector<std::string> names, Route route);

  /// Adds a finished training step.
  void add(const StepReport& report);

  /// A row for each device and for each exchange, and a sentence on how much more device 0 does
  /// than the others. Empty without a step after warm-up.
  [[nodiscard]] std::string text() const;

 private:
  struct Load {
    EnumArray<Phase, double> phase_s{};        // on the compute lane
    EnumArray<Exchange, double> exchange_s{};  // on the communication lane

    /// Excludes injected pauses.
    [[nodiscard]] double busy_s() const;
  };

  [[nodiscard]] std::string devices_table() const;
  [[nodiscard]] std::string exchanges_table() const;
  [[nodiscard]] std::string comparison() const;
  [[nodiscard]] std::int64_t memory_bytes(std::size_t device) const;

  MemoryPlan plan_;
  std::vector<Rows> split_;
  std::vector<std::string> names_;
  Traffic traffic_;
  std::vector<Load> loads_;  // by device; sums over steps
  std::int64_t steps_ = 0;
  double wall_s_ = 0;
};

}  // namespace barestep
