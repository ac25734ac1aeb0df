// A transport that forwards everything to another, a base for tests that observe some of the calls.
#pragma once

#include <string>

#include "core/transport.h"

namespace barestep {

/// `inner` must outlive this object.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(Transport& inner)
      : Transport(inner.rank(), inner.size()), inner_(inner) {}

  void prepare(const Collective& collective) override { inner_.prepare(collective); }
  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag tag) override {
    inner_.run(collective, addresses, streams, tag);
  }
  [[nodiscard]] bool sends_records() const override { return inner_.sends_records(); }
  void set_record_sink(RecordSink* sink) override { inner_.set_record_sink(sink); }
  [[nodiscard]] std::string poll_error() override { return inner_.poll_error(); }

 protected:
  [[nodiscard]] Transport& inner() const { return inner_; }

 private:
  Transport& inner_;
};

}  // namespace barestep
