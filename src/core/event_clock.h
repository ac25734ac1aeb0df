// When events were reached, on the host's clock.
#pragma once

#include <memory>

#include "core/device.h"

namespace barestep {

/// Events of the host's own processor know. Others tell how far they are apart on their device;
/// what that is on the host's clock is found by an event in a stream where nothing else is queued,
/// between two looks at the host's clock; of several tries the closest two count.
class EventClock {
 public:
  /// Compares the clocks. `device` must outlive it. Blocks.
  explicit EventClock(Device& device);

  /// Of an event of the device that was reached and is made for kTime; of core/clock.h.
  [[nodiscard]] double time_of(const Event& event) const {
    if (is_hosts_) return *event.reached_at_s();
    return compared_s_ + event.seconds_since(*compared_);
  }

  /// Compares them anew. Blocks for some microseconds.
  void compare();

  /// A second after it was compared, since the clocks drift, and since CUDA tells the milliseconds
  /// between events as a float: those of a second are exact to a tenth of a microsecond.
  [[nodiscard]] bool is_old() const;

  /// By how much times may have been off at most.
  [[nodiscard]] double error_s() const { return error_s_; }

 private:
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> compared_, spare_;
  bool is_hosts_ = false;  // events know the host's time
  double compared_s_ = 0;
  double error_s_ = 0;
};

}  // namespace barestep
