// A device whose work is recorded: what ran when, and when the host queued it.
#pragma once

#include <memory>

#include "core/forwarding_device.h"
#include "profiler/records.h"

namespace barestep {

/// Hands everything on to another device. While it is on, `collector` learns of every op that the
/// host queues and that the device runs; while it is off, that costs one comparison for each op.
class ProfiledDevice final : public ForwardingDevice {
 public:
  /// Off at first. Both must outlive it, and the work that was queued while it was on.
  ProfiledDevice(Device& inner, RecordCollector& collector)
      : ForwardingDevice(inner), collector_(collector) {}

  /// Between two steps, by the thread that queues. Work already queued may go either way.
  void turn(bool on);

  void run(const DeviceOp& op, const Addresses& addresses, Stream& stream, Tag tag) override;
  void begin_capture(Stream& origin) override;
  std::unique_ptr<Graph> end_capture(Stream& origin) override;
  void launch(Graph& graph, Stream& stream, std::int64_t step) override;

 private:
  RecordCollector& collector_;
  bool on_ = false;
  bool capturing_ = false;
};

}  // namespace barestep
