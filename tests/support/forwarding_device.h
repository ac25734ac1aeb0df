// A device that forwards everything to another, a base for tests that observe some of the calls.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "core/device.h"

namespace barestep {

/// `inner` must outlive this object.
class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(Device& inner) : inner_(inner) {}

  [[nodiscard]] std::string_view name() const override { return inner_.name(); }
  [[nodiscard]] DeviceKind kind() const override { return inner_.kind(); }
  [[nodiscard]] int index() const override { return inner_.index(); }
  [[nodiscard]] DeviceInfo info() const override { return inner_.info(); }

  std::byte* allocate(std::int64_t bytes, MemoryKind kind) override {
    return inner_.allocate(bytes, kind);
  }
  void release(std::byte* memory, MemoryKind kind) noexcept override {
    inner_.release(memory, kind);
  }
  void copy(void* to, const void* from, std::int64_t bytes, Stream& stream) override {
    inner_.copy(to, from, bytes, stream);
  }
  std::unique_ptr<Stream> new_stream(std::string_view label) override {
    return inner_.new_stream(label);
  }
  std::unique_ptr<Event> new_event(EventUse use) override { return inner_.new_event(use); }
  void prepare(const DeviceOp& op) override { inner_.prepare(op); }
  void run(const DeviceOp& op, const Addresses& addresses, Stream& stream, Tag tag) override {
    inner_.run(op, addresses, stream, tag);
  }
  [[nodiscard]] std::size_t joins(std::span<const DeviceOp* const> ops) override {
    return inner_.joins(ops);
  }
  void run_joined(std::span<const DeviceOp* const> ops, const Addresses& addresses, Stream& stream,
                  Tag tag) override {
    inner_.run_joined(ops, addresses, stream, tag);
  }
  void begin_capture(Stream& origin) override { inner_.begin_capture(origin); }
  std::unique_ptr<Graph> end_capture(Stream& origin) override { return inner_.end_capture(origin); }
  void launch(Graph& graph, Stream& stream, std::int64_t step) override {
    inner_.launch(graph, stream, step);
  }
  void set_record_sink(RecordSink* sink) override { inner_.set_record_sink(sink); }

 protected:
  [[nodiscard]] Device& inner() const { return inner_; }

 private:
  Device& inner_;
};

}  // namespace barestep
