// The interface between programs and machines: Device, Stream, Event.
//
// A stream is a FIFO of work; an event is a point in it. "Queues" means that the call returns at
// once and the work is done later, in stream order. "Blocks" means that the call returns when the
// work is done. Ops, address tables and programs must outlive the work queued with them.
//
// If an op fails, its stream skips the ops after it but still signals its events, so nothing waits
// forever. The first error is thrown from synchronize() or check().
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

  /// Blocks until everything queued is done; throws the first error since the last one thrown.
  virtual void synchronize() = 0;

  /// Throws the first known error since the last one thrown, if any. An error is known at the
  /// latest when the host has waited for an event after the work. Does not block.
  virtual void check() = 0;

  /// Gives the stream the scratch memory of its lane: workspace_bytes() for its device's kind. Call
  /// before its first op. Only work on this stream uses the memory, which must outlive that work.
  virtual void set_workspace(std::span<std::byte> /*memory*/) {}

  /// The vendor's stream (cudaStream_t), or null on the CPU.
  [[nodiscard]] virtual void* native() const = 0;
};

enum class EventUse {
  kOrder,  // for waits only
  kTime,   // for seconds_since() too; if captured, every launch records it anew
};

class Event {
 public:
  virtual ~Event() = default;

  /// Queues. Recording again moves the event.
  virtual void record(Stream& stream) = 0;

  /// True if the latest recording was reached, or if none was made. Does not block.
  [[nodiscard]] virtual bool reached() const = 0;

  /// Blocks until the latest recording is reached. Does not block on a device that failed; check()
  /// throws that error.
  virtual void synchronize() const = 0;

  /// Seconds from `earlier` to this event. Both must have been reached and be made with kTime.
  [[nodiscard]] virtual double seconds_since(const Event& earlier) const = 0;

  /// When the event was reached, in seconds of core/clock.h; nothing if the host can find out only
  /// by comparing clocks (train/step_marks.h). The event must have been reached and be made with
  /// kTime.
  [[nodiscard]] virtual std::optional<double> reached_at_s() const { return std::nullopt; }
};

enum class DeviceKind { kCpu, kCuda };

/// The scratch memory that a compute lane needs on a device of this kind; part of the plan.
/// cuBLAS's documentation recommends 32 MiB on sm_90.
constexpr std::int64_t workspace_bytes(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? std::int64_t{32} << 20 : 0;
}

enum class MemoryKind {
  kDevice,
  kPinned,    // host memory the device can copy from and to without staging
  kPageable,  // other host memory; a copy may make the host wait, and no graph can hold one
};

/// How many multiprocessors a GPU has, and what each holds.
struct Multiprocessors {
  int count = 0;
  int threads = 0;    // per multiprocessor
  int registers = 0;  // 32-bit registers per multiprocessor
  std::int64_t shared_bytes = 0;
};

struct DeviceInfo {
  std::string model;             // "AMD EPYC", "NVIDIA H200"
  std::int64_t total_bytes = 0;  // its memory in total
  std::int64_t free_bytes = 0;   // memory that can still be allocated
  int threads = 0;               // worker threads of a CPU device; 0 elsewhere
  std::string product_library;   // the library that computes matrix products
  std::string pci_bus_id{};      // of a GPU, "00000000:17:00.0"; empty elsewhere
  int ordinal = -1;              // of a GPU: its number among the GPUs that CUDA shows
  std::string driver{};          // of a GPU: "driver for CUDA 13.0"
  Multiprocessors multiprocessors{};
  std::int64_t cache_bytes = 0;  // of its largest cache; 0 where that is not known
};

/// Captured work that can be launched many times. Must outlive its launches.
class Graph {
 public:
  virtual ~Graph() = default;
};

class Device {
 public:
  virtual ~Device() = default;

  /// "cpu", "cuda:0"; messages and tables show it.
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual DeviceKind kind() const = 0;

  /// Its place in the program's device list; records carry it.
  [[nodiscard]] virtual int index() const = 0;
  [[nodiscard]] virtual DeviceInfo info() const = 0;

  /// At least 256-byte aligned, contents undefined. Throws Error(kMemory). Blocks.
  virtual std::byte* allocate(std::int64_t bytes, MemoryKind kind) = 0;
  virtual void release(std::byte* memory, MemoryKind kind) noexcept = 0;

  /// Queues. Either side may be device memory or pinned memory of this device. Host memory that is
  /// not pinned is allowed, but may make the call block.
  virtual void copy(void* to, const void* from, std::int64_t bytes, Stream& stream) = 0;

  /// Tools show `label`. A stream labeled as Lane::kComm, on the CPU also as Lane::kCopy, has
  /// priority over the others.
  virtual std::unique_ptr<Stream> new_stream(std::string_view label) = 0;
  virtual std::unique_ptr<Event> new_event(EventUse use) = 0;

  /// All work that run() must not do: choosing algorithms, creating primitives, allocating. Call
  /// once for each op before its first run. Blocks.
  virtual void prepare(const DeviceOp& op) = 0;

  /// The algorithms chosen for products, as text that another process can load; empty if there are
  /// none.
  [[nodiscard]] virtual std::string product_choices() const { return ""; }
  /// Loads such a text from an equal device. Call before prepare(), which then times only what has
  /// the same results either way. Ignores a text from a different device.
  virtual void set_product_choices(const std::string& /*text*/) {}

  /// Queues. Allocates nothing.
  virtual void run(const DeviceOp& op, const Addresses& addresses, Stream& stream, Tag tag) = 0;

  /// How many of these ops, which are prepared and run one after another, the first ones, are to
  /// run as one launch: 1, unless that was timed and is faster. Blocks.
  [[nodiscard]] virtual std::size_t joins(std::span<const DeviceOp* const> /*ops*/) { return 1; }
  /// Queues ops that joins() counted, with the results of one after another. Allocates nothing.
  virtual void run_joined(std::span<const DeviceOp* const> ops, const Addresses& addresses,
                          Stream& stream, Tag tag) {
    for (const DeviceOp* const op : ops) run(*op, addresses, stream, tag);
  }

  /// From now on, work queued on `origin` is captured instead of run, and so is work on streams
  /// that wait for an event recorded there since. All of it must join `origin` again through events
  /// before end_capture(). Ops and address tables must outlive the graph.
  virtual void begin_capture(Stream& origin) = 0;
  virtual std::unique_ptr<Graph> end_capture(Stream& origin) = 0;

  /// Queues the captured work after the work already queued on `stream`, the origin of its capture.
  /// Its records carry `step`.
  virtual void launch(Graph& graph, Stream& stream, std::int64_t step) = 0;

  /// From now on, sends a record of every op to `sink`; null stops that. Work already queued may or
  /// may not be recorded, so a sink must outlive that work.
  virtual void set_record_sink(RecordSink* sink) = 0;
};

}  // namespace barestep
