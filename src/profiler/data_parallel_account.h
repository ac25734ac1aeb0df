// What DataParallel costs, device by device: is device 0 more loaded, and what do the exchanges of
// a step take?
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/index.h"
#include "core/plan.h"
#include "core/program.h"
#include "train/parameter_layout.h"
#include "train/step.h"
#include "train/trainer.h"

namespace barestep {

/// What moves between devices. Its nodes are of phase kReduce and run on the lanes of
/// communication.
enum class Exchange { kBroadcast, kScatter, kGather, kReduce };
template <>
inline constexpr std::string_view kNamesOf<Exchange>[] = {"broadcast", "scatter", "gather",
                                                          "reduce"};

Exchange exchange_of(const Node& node);

/// How collectives travel: from and to device 0 directly, or from device to device.
enum class Route { kStar, kRing };

/// Bytes that a step moves between devices.
struct Traffic {
  std::vector<std::int64_t> in_bytes, out_bytes;  // by device
  EnumArray<Exchange, std::int64_t> bytes{};      // by exchange; all devices together
};

/// Of a program over at most `devices` devices.
Traffic traffic_of(const Program& program, int devices, Route route);

/// Collects the steps after warm-up. Allocates at construction only.
class DataParallelAccount {
 public:
  /// `split` are the rows of each device that has any, `names` those of all devices asked for, with
  /// and without rows. `programs` must outlive it.
  DataParallelAccount(const StepPrograms& programs, std::vector<Rows> split,
                      std::vector<std::string> names, Route route);

  /// A training step that is finished.
  void add(const StepReport& report);

  /// A row for each device and for each exchange, and in a sentence what device 0 has more than the
  /// others. Empty without a step after warm-up.
  [[nodiscard]] std::string text() const;

 private:
  struct Load {
    EnumArray<Phase, double> phase_s{};        // on the compute lane
    EnumArray<Exchange, double> exchange_s{};  // on the lane of communication

    /// Without injected pauses.
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
  std::vector<Load> loads_;  // sums over steps, by device
  std::int64_t steps_ = 0;
  double wall_s_ = 0;
};

}  // namespace barestep
