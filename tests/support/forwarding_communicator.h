// A communicator that forwards everything to another, a base for tests that observe some of the
// calls.
#pragma once

#include <string>

#include "core/communicator.h"

namespace barestep {

/// `inner` must outlive this object.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(Communicator& inner) : inner_(inner) {}

  [[nodiscard]] int rank() const override { return inner_.rank(); }
  [[nodiscard]] int size() const override { return inner_.size(); }
  void prepare(const Collective& collective) override { inner_.prepare(collective); }
  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag tag) override {
    inner_.run(collective, addresses, streams, tag);
  }
  [[nodiscard]] bool sends_records() const override { return inner_.sends_records(); }
  void set_record_sink(RecordSink* sink) override { inner_.set_record_sink(sink); }
  void broadcast(std::span<std::byte> bytes, int root) override { inner_.broadcast(bytes, root); }
  void all_gather(std::span<const std::byte> bytes, std::span<std::byte> all) override {
    inner_.all_gather(bytes, all);
  }
  void barrier() override { inner_.barrier(); }
  [[nodiscard]] std::string poll_error() override { return inner_.poll_error(); }
  void abort(ExitCode code) noexcept override { inner_.abort(code); }

 protected:
  [[nodiscard]] Communicator& inner() const { return inner_; }

 private:
  Communicator& inner_;
};

}  // namespace barestep
