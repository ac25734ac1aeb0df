#include "parallel/comm/host_transport.h"

#include <exception>

#include "core/clock.h"

namespace barestep {

void HostTransport::prepare(const Collective& collective) {
  BARESTEP_REQUIRE(parts_of(collective).size() == 1, "a rank has one device");
}

void HostTransport::run(const Collective& collective, const Addresses& addresses,
                        std::span<Stream* const> streams, Tag tag) {
  const auto [call, is_new] =
      calls_.try_emplace({&collective, &addresses}, Call{this, &collective, &addresses, tag});
  // The previous call in this slot has finished: its step ended before this one was queued.
  call->second.tag = tag;
  streams[0]->call(&HostTransport::perform_call, &call->second);
}

void HostTransport::perform_call(void* argument) {
  const auto& call = *static_cast<Call*>(argument);
  FlightRecord* const record = call.self->flight_record_;
  if (record != nullptr) {
    record->begin(Track::kCollective, activity_of(*call.collective), call.tag.step,
                  cost_of(*call.collective).message_bytes);
  }
  const double start_s = now_s();
  try {
    call.self->perform(*call.collective, *call.addresses);
    if (record != nullptr) record->end(Track::kCollective);
    if (RecordSink* const sink = call.self->sink_) {
      sink->on_record({.tag = call.tag,
                       .label = label_of(*call.collective),
                       .start_s = start_s,
                       .end_s = now_s()});
    }
  } catch (const std::exception& error) {
    call.self->report(error.what());
  }
}

std::string HostTransport::poll_error() {
  const std::lock_guard lock(mutex_);
  return error_;
}

void HostTransport::report(const std::string& error) {
  const std::lock_guard lock(mutex_);
  if (error_.empty()) error_ = error;
}

}  // namespace barestep
