#include "profiler/gpu_event_records.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "core/clock.h"

namespace barestep {
namespace {

/// Some steps of a deep model.
constexpr std::size_t kPairs = 4096;
constexpr int kTries = 5;
/// CUDA tells the time between events in milliseconds as a float: a second of them is exact to a
/// tenth of a microsecond.
constexpr double kAnchorHoldsSeconds = 1;

}  // namespace

/// The pairs of events of one device, used in turn.
class GpuEventRecords::OfDevice {
 public:
  OfDevice(Device& device, RecordSink& sink)
      : sink_(sink),
        index_(device.index()),
        stream_(device.new_stream("profiler")),
        anchor_(device.new_event(EventUse::kTime)),
        other_(device.new_event(EventUse::kTime)),
        pairs_(kPairs) {
    for (Pair& pair : pairs_) {
      pair.begin = device.new_event(EventUse::kTime);
      pair.end = device.new_event(EventUse::kTime);
    }
  }

  /// Finds out when, by the host's clock, an event was reached: between two looks at the clock, of
  /// several tries the two that are closest.
  void find_clock() {
    double best_s = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kTries; ++i) {
      const double before_s = now_s();
      other_->record(*stream_);
      stream_->synchronize();
      const double took_s = now_s() - before_s;
      if (took_s >= best_s) continue;
      best_s = took_s;
      anchor_s_ = before_s + took_s / 2;
      std::swap(anchor_, other_);
    }
  }

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
    if (used_ == 0 && now_s() - anchor_s_ > kAnchorHoldsSeconds) find_clock();
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
                     .start_s = anchor_s_ + pair.begin->seconds_since(*anchor_),
                     .end_s = anchor_s_ + pair.end->seconds_since(*anchor_)});
    first_ = (first_ + 1) % pairs_.size();
    --used_;
  }

  RecordSink& sink_;
  int index_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> anchor_, other_;
  double anchor_s_ = 0;
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
    if (on) device->find_clock();
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
