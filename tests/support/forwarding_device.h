// A device and an event that forward everything to others, bases for tests that observe some of the
// calls.
#pragma once

#include "core/device.h"
#include "support/testing.h"

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

/// Passes on those of the device's records for which a function is true.
class FilteredRecords : public ForwardingDevice, public RecordSink {
 public:
  FilteredRecords(Device& inner, std::function<bool(const Record&)> passes)
      : ForwardingDevice(inner), passes_(std::move(passes)) {}
  void set_record_sink(RecordSink* sink) override {
    sink_ = sink;
    inner().set_record_sink(sink == nullptr ? nullptr : this);
  }
  void on_record(const Record& record) override {
    if (passes_(record)) sink_->on_record(record);
  }

 private:
  std::function<bool(const Record&)> passes_;
  RecordSink* sink_ = nullptr;
};

/// Measures the time between two of its kind, as a GPU's event does.
class ForwardingEvent : public Event {
 public:
  explicit ForwardingEvent(std::unique_ptr<Event> inner) : inner_(std::move(inner)) {}
  void record(Stream& stream) override { inner_->record(stream); }
  [[nodiscard]] bool reached() const override { return inner_->reached(); }
  void synchronize() const override { inner_->synchronize(); }
  [[nodiscard]] double seconds_since(const Event& earlier) const override {
    return inner_->seconds_since(*dynamic_cast<const ForwardingEvent&>(earlier).inner_);
  }

 private:
  std::unique_ptr<Event> inner_;
};

}  // namespace barestep
