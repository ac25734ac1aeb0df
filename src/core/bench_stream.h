// A stream with memory of its own, for timing ops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/addresses.h"
#include "core/device.h"

namespace barestep {

/// Buffer 0 is its memory. All of it is given back at the end.
class BenchStream {
 public:
  /// `bytes` of device memory, a multiple of 4, filled with zeros, and the stream's workspace.
  /// `device` must outlive it. Throws Error(kMemory). Blocks.
  BenchStream(Device& device, std::int64_t bytes, std::string_view label);
  ~BenchStream();
  BenchStream(const BenchStream&) = delete;
  BenchStream& operator=(const BenchStream&) = delete;

  [[nodiscard]] const Addresses& addresses() const { return addresses_; }

  /// Queues; the op must be prepared.
  void run(const DeviceOp& op) { device_.run(op, addresses_, *stream_, {}); }
  void synchronize() { stream_->synchronize(); }

  /// Seconds on the device of what queue() queues by run(). Blocks.
  template <class Queue>
  double seconds_of(const Queue& queue) {
    begin_->record(*stream_);
    queue();
    end_->record(*stream_);
    stream_->synchronize();
    return end_->seconds_since(*begin_);
  }

 private:
  Device& device_;
  std::byte* memory_;
  Addresses addresses_;
  std::byte* workspace_ = nullptr;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> begin_, end_;
};

}  // namespace barestep
