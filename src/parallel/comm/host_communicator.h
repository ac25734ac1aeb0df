// Collectives that are computed on the host, in the order of the stream they are queued on.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/communicator.h"
#include "parallel/job/flight_record.h"

namespace barestep {

/// What communicators over host memory share: a collective is a host function in its stream. One
/// tensor per collective: a rank has one device, whose memory the host can reach.
class HostCommunicator : public Communicator {
 public:
  void prepare(const Collective& collective) override;
  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag tag) override;
  [[nodiscard]] bool sends_records() const override { return true; }
  void set_record_sink(RecordSink* sink) override { sink_ = sink; }

  /// Enters every collective in `record` from now on; null stops that.
  void set_flight_record(FlightRecord* record) { flight_record_ = record; }
  [[nodiscard]] std::string poll_error() override;

 protected:
  /// Carries out a collective on the stream's thread; blocks until it is done there. What it throws
  /// is what poll_error() returns from then on.
  virtual void perform(const Collective& collective, const Addresses& addresses) = 0;

  /// The first error stays.
  void report(const std::string& error);

  [[nodiscard]] FlightRecord* flight_record() const { return flight_record_; }

 private:
  struct Call {
    HostCommunicator* self;
    const Collective* collective;
    const Addresses* addresses;
    Tag tag;
  };
  static void perform_call(void* argument);

  // Kept for as long as the communicator: streams read them later. One per slot of a step.
  std::map<std::pair<const Collective*, const Addresses*>, Call> calls_;
  RecordSink* sink_ = nullptr;
  FlightRecord* flight_record_ = nullptr;
  std::mutex mutex_;
  std::string error_;
};

}  // namespace barestep
