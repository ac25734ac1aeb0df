#include "profiler/gpu_event_records.h"

#include <fmt/format.h>

#include "core/event_clock.h"

namespace barestep {
namespace {

/// Some steps of a deep model.
constexpr std::size_t kPairs = 4096;

}  // namespace

/// The pairs of events of one device, used in turn.
class GpuEventRecords::OfDevice {
 public:
  OfDevice(Device& device, RecordSink& sink)
      : sink_(sink), index_(device.index()), clock_(device), pairs_(kPairs) {
    for (Pair& pair : pairs_) {
      pair.begin = device.new_event(EventUse::kTime);
      pair.end = device.new_event(EventUse::kTime);
    }
  }

  void compare_clocks() { clock_.compare(); }

  void begin(const Tag& tag, std::string_view label, Stream& stream) {
    if (used_ == pairs_.size()) send_oldest();
    Pair& pair = pairs_[(first_ + used_) % pairs_.size()];
    pair.tag = tag;
    pair.label = label;
    pair.begin->record(stream);
  }
  void end(Stream& stream) {
    pairs_[(first_ + used_) % pairs_.size()].end->record(stream);
    ++used_;
  }

  void collect() {
    while (used_ > 0 && pairs_[first_].end->reached()) send_oldest();
    if (used_ == 0 && clock_.is_old()) clock_.compare();
  }
  void finish() {
    while (used_ > 0) send_oldest();
  }

 private:
  struct Pair {
    std::unique_ptr<Event> begin, end;
    Tag tag;
    std::string_view label;
  };

  void send_oldest() {
    const Pair& pair = pairs_[first_];
    pair.end->synchronize();
    sink_.on_record({.tag = pair.tag,
                     .label = pair.label,
                     .device = index_,
                     .start_s = clock_.time_of(*pair.begin),
                     .end_s = clock_.time_of(*pair.end)});
    first_ = (first_ + 1) % pairs_.size();
    --used_;
  }

  RecordSink& sink_;
  int index_;
  EventClock clock_;
  std::vector<Pair> pairs_;
  std::size_t first_ = 0, used_ = 0;
};

GpuEventRecords::GpuEventRecords(std::vector<Device*> devices, RecordSink& sink,
                                 const std::string& why)
    : source_(fmt::format("CUDA events, to about a microsecond: {}", why)) {
  for (Device* device : devices) devices_.push_back(std::make_unique<OfDevice>(*device, sink));
}

GpuEventRecords::~GpuEventRecords() = default;

void GpuEventRecords::turn(bool on, bool /*keeps*/) {
  for (const auto& device : devices_) {
    device->finish();  // what waits belongs to the clock that was found before
    if (on) device->compare_clocks();
  }
}

void GpuEventRecords::begin(const Tag& tag, std::string_view label, int device, Stream& stream) {
  if (!capturing_) devices_[static_cast<std::size_t>(device)]->begin(tag, label, stream);
}

void GpuEventRecords::end(int device, Stream& stream) {
  if (!capturing_) devices_[static_cast<std::size_t>(device)]->end(stream);
}

void GpuEventRecords::collect() {
  for (const auto& device : devices_) device->collect();
}

void GpuEventRecords::finish() {
  for (const auto& device : devices_) device->finish();
}

}  // namespace barestep
