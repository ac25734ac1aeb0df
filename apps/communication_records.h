// What tells the account of communication when each bucket was ready and reduced.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/communicator.h"
#include "core/device.h"
#include "parallel/communication_account.h"
#include "parallel/event_records.h"
#include "rank_setup.h"

namespace barestep {

/// Listens to a rank's device and communicator. A GPU sends no records, and those of a graph do not
/// tell which step they are of: there events take their place.
class CommunicationRecords {
 public:
  /// For a connected setup, before there is a trainer. `device` and `transport` are the setup's, or
  /// stand before them. All must outlive it.
  CommunicationRecords(const RankSetup& setup, Device& device, Communicator& transport,
                       Communicator& ranks);

  /// What to train on.
  [[nodiscard]] Device& device() const { return events_ ? events_->device() : device_; }
  [[nodiscard]] Communicator& transport() const {
    return events_ ? events_->communicator() : transport_;
  }

  /// While no work is queued.
  void begin();
  void end();

  /// The runner's step `step` is done, and at most the next one queued.
  void take(std::int64_t step);

  /// The account of all ranks, or nothing where there is none. Every rank calls it. Blocks.
  [[nodiscard]] std::string text() const;

 private:
  void listen(RecordSink* sink);

  Device& device_;
  Communicator& transport_;
  Communicator& ranks_;
  bool listens_ = false;
  std::optional<CommunicationAccount> account_;
  std::optional<EventRecords> events_;
};

}  // namespace barestep
