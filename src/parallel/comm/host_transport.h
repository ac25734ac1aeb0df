// Collectives that the host computes, in the order of the stream they are queued on.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/transport.h"
#include "parallel/job/flight_record.h"

namespace barestep {

/// Base of the transports over host memory: a collective is a host function in its stream. One
/// tensor per collective: each rank has one device, and the host can access its memory.
class HostTransport : public Transport {
 public:
  void prepare(const Collective& collective) override;
  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag tag) override;
  [[nodiscard]] bool sends_records() const override { return true; }
  void set_record_sink(RecordSink* sink) override { sink_ = sink; }

  /// Records every collective in `record` from now on; null stops the recording.
  void set_flight_record(FlightRecord* record) { flight_record_ = record; }
  [[nodiscard]] std::string poll_error() override;

 protected:
  using Transport::Transport;

  /// Carries out a collective on the stream's thread; blocks until it is done. If it throws,
  /// poll_error() returns the message from then on.
  virtual void perform(const Collective& collective, const Addresses& addresses) = 0;

  /// Keeps the first error only.
  void report(const std::string& error);

  [[nodiscard]] FlightRecord* flight_record() const { return flight_record_; }

 private:
  struct Call {
    HostTransport* self;
    const Collective* collective;
    const Addresses* addresses;
    Tag tag;
  };
  static void perform_call(void* argument);

  // Kept as long as the transport, because streams read them later. One per slot of a step.
  std::map<std::pair<const Collective*, const Addresses*>, Call> calls_;
  RecordSink* sink_ = nullptr;
  FlightRecord* flight_record_ = nullptr;
  std::mutex mutex_;
  std::string error_;
};

}  // namespace barestep
