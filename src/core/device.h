// The seam between programs and machines: Device, Stream, Event.
//
// A stream is a FIFO of work, an event a point in it. "Queues" means: returns at once, the work is
// done later in stream order. "Blocks" means: returns when it is done. Ops, address tables and
// programs must outlive the work queued with them.
//
// A stream whose op failed skips the ops after it, still signals its events, so that nothing waits
// for ever, and throws the first error from synchronize() or check().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/addresses.h"
#include "core/ops.h"
#include "core/record.h"

namespace barestep {

class Event;

class Stream {
 public:
  virtual ~Stream() = default;

  /// Queues: later work waits until the event's latest recording is reached. Throws Error(kBug) if
  /// the event was never recorded.
  virtual void wait(const Event& event) = 0;

  /// Queues function(argument), run on the host in stream order. It must not throw and must not
  /// call into the stream.
  virtual void call(void (*function)(void*), void* argument) = 0;

  /// Blocks until everything queued is done; throws the first error since the last throw.
  virtual void synchronize() = 0;

  /// Throws the first error since the last throw, if there is one. Does not block.
  virtual void check() = 0;

  /// Gives the stream the scratch memory of its lane, workspace_bytes() of its device's kind,
  /// before its first op. Only what this stream runs uses it; it must outlive the stream's work.
  virtual void set_workspace(std::span<std::byte> /*memory*/) {}

  /// The vendor's stream (cudaStream_t), or null on the CPU.
  [[nodiscard]] virtual void* native() const = 0;
};

enum class EventUse {
  kOrder,  // for waits only
  kTime,   // for seconds_since() too; recorded in a capture, it is recorded anew by every launch
};

class Event {
 public:
  virtual ~Event() = default;

  /// Queues. Recording again moves the event.
  virtual void record(Stream& stream) = 0;

  /// True when the latest recording was reached, or none was made. Does not block.
  [[nodiscard]] virtual bool reached() const = 0;

  /// Blocks until the latest recording is reached. A device that failed does not block: the error
  /// is thrown by check().
  virtual void synchronize() const = 0;

  /// Seconds from `earlier` to this. Both must have been reached and be made for kTime.
  [[nodiscard]] virtual double seconds_since(const Event& earlier) const = 0;

  /// When it was reached, of core/clock.h; nothing where the host cannot know but by comparing
  /// clocks (train/step_marks.h). It must have been reached and be made for kTime.
  [[nodiscard]] virtual std::optional<double> reached_at_s() const { return std::nullopt; }
};

enum class DeviceKind { kCpu, kCuda };

/// The scratch memory that a compute lane needs on such a device; part of the plan. 32 MiB is what
/// cuBLAS's documentation asks for on sm_90.
constexpr std::int64_t workspace_bytes(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? std::int64_t{32} << 20 : 0;
}

enum class MemoryKind {
  kDevice,
  kPinned,    // host memory the device can copy from and to without staging
  kPageable,  // any other host memory; copies may make the host wait, and no graph can hold them
};

/// What one of a GPU's multiprocessors holds, and how many there are.
struct Multiprocessors {
  int count = 0;
  int threads = 0;    // of each
  int registers = 0;  // of each, of 32 bits
  std::int64_t shared_bytes = 0;
};

struct DeviceInfo {
  std::string model;             // "AMD EPYC", "NVIDIA H200"
  std::int64_t total_bytes = 0;  // memory it has
  std::int64_t free_bytes = 0;   // memory that can still be allocated
  int threads = 0;               // worker threads of a CPU device; 0 elsewhere
  std::string product_library;   // what computes matrix products
  std::string pci_bus_id{};      // of a GPU, "00000000:17:00.0"; empty elsewhere
  int ordinal = -1;              // of a GPU among those that CUDA shows
  std::string driver{};          // of a GPU: "driver for CUDA 13.0"
  Multiprocessors multiprocessors{};
  std::int64_t cache_bytes = 0;  // of its largest cache; 0 where that is not known
};

/// Work that was captured once and can be launched many times. Must outlive its launches.
class Graph {
 public:
  virtual ~Graph() = default;
};

class Device {
 public:
  virtual ~Device() = default;

  /// "cpu", "cuda:0"; as messages and tables show it.
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual DeviceKind kind() const = 0;

  /// Its place in the program's device list, which records carry.
  [[nodiscard]] virtual int index() const = 0;
  [[nodiscard]] virtual DeviceInfo info() const = 0;

  /// At least 256-byte aligned, content undefined. Throws Error(kMemory). Blocks.
  virtual std::byte* allocate(std::int64_t bytes, MemoryKind kind) = 0;
  virtual void release(std::byte* memory, MemoryKind kind) noexcept = 0;

  /// Queues. Either side may be device or pinned memory of this device; host memory that is not
  /// pinned is allowed, and may make the call block.
  virtual void copy(void* to, const void* from, std::int64_t bytes, Stream& stream) = 0;

  /// `label` is shown by tools. A GPU's stream with the label of Lane::kComm goes before its
  /// others, one with that of Lane::kSide leaves room for them.
  virtual std::unique_ptr<Stream> new_stream(std::string_view label) = 0;
  virtual std::unique_ptr<Event> new_event(EventUse use) = 0;

  /// Everything run() must not do: choosing algorithms, creating primitives, allocating. Call once
  /// for each op before the first run of it. Blocks.
  virtual void prepare(const DeviceOp& op) = 0;

  /// Which algorithms it has chosen for products, as a text that another process may take; empty
  /// where there is none.
  [[nodiscard]] virtual std::string product_choices() const { return ""; }
  /// Takes such a text, made on an equal device, before it prepares; then it times nothing more.
  /// Leaves a text that was made elsewhere.
  virtual void set_product_choices(const std::string& /*text*/) {}

  /// Queues. Allocates nothing.
  virtual void run(const DeviceOp& op, const Addresses& addresses, Stream& stream, Tag tag) = 0;

  /// From now on, work queued on `origin`, and on streams that wait for an event recorded there
  /// since, is noted instead of done. All of it must join `origin` again by events before
  /// end_capture(). Ops and address tables must outlive the graph.
  virtual void begin_capture(Stream& origin) = 0;
  virtual std::unique_ptr<Graph> end_capture(Stream& origin) = 0;

  /// Queues the captured work after what `stream`, the origin of its capture, holds. Its records
  /// carry `step`.
  virtual void launch(Graph& graph, Stream& stream, std::int64_t step) = 0;

  /// Sends a record of every op to `sink` from now on; null stops that. Work that is queued already
  /// may go either way, so a sink must outlive it.
  virtual void set_record_sink(RecordSink* sink) = 0;
};

}  // namespace barestep
