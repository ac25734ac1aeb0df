#include "profiler/profiled_communicator.h"

#include <algorithm>

#include "core/clock.h"

namespace barestep {
namespace {

/// The host is at most two steps ahead.
constexpr std::size_t kStepsQueued = 3;

std::size_t tensors_of(const Collective& collective) {
  return std::visit([](const auto& op) { return op.tensors.size(); }, collective);
}

}  // namespace

void ProfiledCommunicator::Steps::on_record(const Record& record) {
  Record of_step = record;
  // A graph's were captured in an earlier step; what ran eagerly since knows its own.
  of_step.tag.step = std::max(of_step.tag.step, device_.launched_step());
  collector_.on_record(of_step);
}

ProfiledCommunicator::ProfiledCommunicator(Communicator& inner, RecordCollector& collector,
                                           const ProfiledDevice& device, GpuRecords* gpu)
    : ForwardingCommunicator(inner),
      collector_(collector),
      device_(device),
      gpu_(gpu),
      steps_(collector, device),
      fork_(steps_) {}

void ProfiledCommunicator::turn(bool on) {
  if (on == on_) return;
  on_ = on;
  fork_.listen(on && inner().sends_records() && gpu_ == nullptr);
  inner().set_record_sink(fork_.sink());
}

void ProfiledCommunicator::set_record_sink(RecordSink* sink) {
  fork_.also_to(sink);
  inner().set_record_sink(fork_.sink());
}

void ProfiledCommunicator::prepare(const Collective& collective) {
  inner().prepare(collective);
  marks_.resize(marks_.size() + kStepsQueued * tensors_of(collective));
}

void ProfiledCommunicator::run(const Collective& collective, const Addresses& addresses,
                               std::span<Stream* const> streams, Tag tag) {
  const bool is_capturing = device_.is_capturing();
  const bool is_noted = is_capturing && gpu_ != nullptr;
  if (!is_noted && (!on_ || is_capturing)) {
    return inner().run(collective, addresses, streams, tag);
  }
  const double start_s = now_s();
  begin(collective, streams, tag);
  inner().run(collective, addresses, streams, tag);
  end(streams);
  if (is_capturing) return;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    collector_.on_queued({.tag = tag,
                          .label = label_of(collective),
                          .device = static_cast<int>(i),
                          .start_s = start_s,
                          .end_s = now_s()});
  }
}

void ProfiledCommunicator::begin(const Collective& collective, std::span<Stream* const> streams,
                                 const Tag& tag) {
  if (gpu_ == nullptr && inner().sends_records()) return;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    const int device = static_cast<int>(i);
    if (gpu_ != nullptr) {
      gpu_->begin(tag, label_of(collective), device, *streams[i]);
      continue;
    }
    Mark& mark = marks_[(next_ + i) % marks_.size()];
    mark = {&collector_, {.tag = tag, .label = label_of(collective), .device = device}};
    streams[i]->call(&ProfiledCommunicator::begin_mark, &mark);
  }
}

void ProfiledCommunicator::end(std::span<Stream* const> streams) {
  if (gpu_ == nullptr && inner().sends_records()) return;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (gpu_ != nullptr) {
      gpu_->end(static_cast<int>(i), *streams[i]);
    } else {
      streams[i]->call(&ProfiledCommunicator::end_mark, &marks_[(next_ + i) % marks_.size()]);
    }
  }
  next_ += streams.size();
}

void ProfiledCommunicator::begin_mark(void* argument) {
  static_cast<Mark*>(argument)->record.start_s = now_s();
}

void ProfiledCommunicator::end_mark(void* argument) {
  Mark& mark = *static_cast<Mark*>(argument);
  mark.record.end_s = now_s();
  mark.sink->on_record(mark.record);
}

}  // namespace barestep
