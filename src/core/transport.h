// The interface between programs and the devices of other ranks.
//
// Ranks are numbered across all processes; a process that drives n devices holds n consecutive
// ranks.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "core/addresses.h"
#include "core/device.h"
#include "core/group.h"
#include "core/ops.h"
#include "core/record.h"

namespace barestep {

/// Carries out collectives among ranks.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  /// All work that run() must not do. Call once for each collective before its first run. Blocks.
  virtual void prepare(const Collective& collective) = 0;

  /// Queues; `streams` has one stream per tensor of the collective. Part i completes in stream i.
  /// Every rank calls it in the same order.
  virtual void run(const Collective& collective, const Addresses& addresses,
                   std::span<Stream* const> streams, Tag tag) = 0;

  /// False if the transport cannot measure.
  [[nodiscard]] virtual bool sends_records() const { return false; }

  /// From now on, sends a record of every collective to `sink`, starting when this rank began it.
  /// Null stops that. Call while no work is queued. Sends nothing unless sends_records().
  virtual void set_record_sink(RecordSink* /*sink*/) {}

  /// Why collectives can no longer succeed; empty while they can. Does not block.
  [[nodiscard]] virtual std::string poll_error() { return ""; }

  /// The transport of the ranks that give the same `color`, in the order of their ranks. Every rank
  /// calls it, for all groups in the same order. This transport must outlive it. Blocks.
  [[nodiscard]] virtual std::unique_ptr<Transport> split(int /*color*/) {
    BARESTEP_REQUIRE(false, "these ranks do not form groups");
    return nullptr;
  }

 protected:
  Transport(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_, size_;
};

/// What connects the devices of a run. Those of one process have no group; a single one has
/// neither.
struct Connection {
  Group* ranks = nullptr;
  Transport* transport = nullptr;
};

}  // namespace barestep
