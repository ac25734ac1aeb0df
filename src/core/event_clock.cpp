#include "core/event_clock.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/clock.h"

namespace barestep {
namespace {

constexpr double kHoldsSeconds = 1;
constexpr int kReadings = 5;

}  // namespace

EventClock::EventClock(Device& device)
    : stream_(device.new_stream("clock")),
      compared_(device.new_event(EventUse::kTime)),
      spare_(device.new_event(EventUse::kTime)) {
  compare();
}

void EventClock::compare() {
  if (is_hosts_) return;
  double closest_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kReadings; ++i) {
    const double before_s = now_s();
    spare_->record(*stream_);
    spare_->synchronize();
    const double after_s = now_s();
    if (spare_->reached_at_s()) {
      is_hosts_ = true;
      return;
    }
    if (after_s - before_s >= closest_s) continue;
    closest_s = after_s - before_s;
    compared_s_ = (before_s + after_s) / 2;
    std::swap(compared_, spare_);
  }
  error_s_ = std::max(error_s_, closest_s / 2);
}

bool EventClock::is_old() const {
  return !is_hosts_ && now_s() - compared_s_ > kHoldsSeconds;
}

}  // namespace barestep
