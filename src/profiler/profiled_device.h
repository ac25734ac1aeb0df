// A device whose work is recorded: what ran when, and when the host queued it.
#pragma once

#include <atomic>
#include <memory>

#include "core/forwarding_device.h"
#include "profiler/gpu_records.h"
#include "profiler/records.h"

namespace barestep {

/// Hands the records of a device or communicator to the profiler, while that listens, and to
/// whoever else does.
class RecordFork final : public RecordSink {
 public:
  explicit RecordFork(RecordSink& profiler) : profiler_(profiler) {}

  void listen(bool on) { on_ = on; }
  void also_to(RecordSink* other) { other_ = other; }
  /// What to install: null where nobody listens.
  [[nodiscard]] RecordSink* sink() { return on_ || other_ != nullptr ? this : nullptr; }

  void on_record(const Record& record) override;

 private:
  RecordSink& profiler_;
  std::atomic<bool> on_{false};
  std::atomic<RecordSink*> other_{nullptr};
};

/// Hands everything on to another device. While it is on, `collector` learns of every op that the
/// host queues and that the device runs; while it is off, that costs one comparison for each op.
class ProfiledDevice final : public ForwardingDevice {
 public:
  /// Off at first. A GPU's records come from `gpu`, which is null for others. All must outlive it,
  /// and the work that was queued while it was on.
  ProfiledDevice(Device& inner, RecordCollector& collector, GpuRecords* gpu = nullptr)
      : ForwardingDevice(inner), collector_(collector), gpu_(gpu), fork_(collector) {}

  /// Between two steps, by the thread that queues. Work already queued may go either way.
  void turn(bool on);

  [[nodiscard]] bool is_capturing() const { return capturing_; }
  /// The step of the last launch of a graph; -1 before the first.
  [[nodiscard]] std::int64_t launched_step() const { return launched_step_; }

  void run(const DeviceOp& op, const Addresses& addresses, Stream& stream, Tag tag) override;
  void begin_capture(Stream& origin) override;
  std::unique_ptr<Graph> end_capture(Stream& origin) override;
  void launch(Graph& graph, Stream& stream, std::int64_t step) override;
  void set_record_sink(RecordSink* sink) override;

 private:
  RecordCollector& collector_;
  GpuRecords* gpu_;
  RecordFork fork_;
  bool on_ = false;
  bool capturing_ = false;
  std::atomic<std::int64_t> launched_step_{-1};
};

}  // namespace barestep
