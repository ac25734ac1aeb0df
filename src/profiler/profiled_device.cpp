#include "profiler/profiled_device.h"

#include "core/clock.h"

namespace barestep {
namespace {

constexpr std::string_view kLaunch = "launch graph";

}  // namespace

void RecordFork::on_record(const Record& record) {
  if (on_) profiler_.on_record(record);
  if (RecordSink* const other = other_) other->on_record(record);
}

void ProfiledDevice::turn(bool on) {
  if (on == on_) return;
  on_ = on;
  fork_.listen(on && gpu_ == nullptr);
  inner().set_record_sink(fork_.sink());
}

void ProfiledDevice::set_record_sink(RecordSink* sink) {
  fork_.also_to(sink);
  inner().set_record_sink(fork_.sink());
}

void ProfiledDevice::run(const DeviceOp& op, const Addresses& addresses, Stream& stream, Tag tag) {
  const bool is_noted = capturing_ && gpu_ != nullptr;
  // What a capture notes is queued by the launches.
  if (!is_noted && (!on_ || capturing_)) return inner().run(op, addresses, stream, tag);
  const double start_s = now_s();
  if (gpu_ != nullptr) gpu_->begin(tag, label_of(op), inner().index(), stream);
  inner().run(op, addresses, stream, tag);
  if (gpu_ != nullptr) gpu_->end(inner().index(), stream);
  if (capturing_) return;
  collector_.on_queued({.tag = tag,
                        .label = label_of(op),
                        .device = inner().index(),
                        .start_s = start_s,
                        .end_s = now_s()});
}

void ProfiledDevice::begin_capture(Stream& origin) {
  capturing_ = true;
  if (gpu_ != nullptr) gpu_->capture(true);
  inner().begin_capture(origin);
}

std::unique_ptr<Graph> ProfiledDevice::end_capture(Stream& origin) {
  auto graph = inner().end_capture(origin);
  capturing_ = false;
  if (gpu_ != nullptr) gpu_->capture(false);
  return graph;
}

void ProfiledDevice::launch(Graph& graph, Stream& stream, std::int64_t step) {
  launched_step_ = step;
  if (!on_) return inner().launch(graph, stream, step);
  const Tag tag{.program = 0, .step = step, .node = kGraphLaunch};
  const double start_s = now_s();
  if (gpu_ != nullptr) gpu_->begin(tag, kLaunch, inner().index(), stream);
  inner().launch(graph, stream, step);
  if (gpu_ != nullptr) gpu_->end(inner().index(), stream);
  collector_.on_queued({.tag = tag,
                        .label = kLaunch,
                        .device = inner().index(),
                        .start_s = start_s,
                        .end_s = now_s()});
}

}  // namespace barestep
