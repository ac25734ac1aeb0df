#include "profiler/profiled_device.h"

#include "core/clock.h"

namespace barestep {

void ProfiledDevice::turn(bool on) {
  if (on == on_) return;
  on_ = on;
  inner().set_record_sink(on ? &collector_ : nullptr);
}

void ProfiledDevice::run(const DeviceOp& op, const Addresses& addresses, Stream& stream, Tag tag) {
  // What a capture notes is queued by the launches.
  if (!on_ || capturing_) return inner().run(op, addresses, stream, tag);
  const double start_s = now_s();
  inner().run(op, addresses, stream, tag);
  collector_.on_queued({.tag = tag,
                        .label = label_of(op),
                        .device = inner().index(),
                        .start_s = start_s,
                        .end_s = now_s()});
}

void ProfiledDevice::begin_capture(Stream& origin) {
  capturing_ = true;
  inner().begin_capture(origin);
}

std::unique_ptr<Graph> ProfiledDevice::end_capture(Stream& origin) {
  capturing_ = false;
  return inner().end_capture(origin);
}

void ProfiledDevice::launch(Graph& graph, Stream& stream, std::int64_t step) {
  if (!on_) return inner().launch(graph, stream, step);
  const double start_s = now_s();
  inner().launch(graph, stream, step);
  collector_.on_queued({.tag = {.program = 0, .step = step, .node = kGraphLaunch},
                        .label = "launch graph",
                        .device = inner().index(),
                        .start_s = start_s,
                        .end_s = now_s()});
}

}  // namespace barestep
