// A device whose events, like a GPU's, only give the time between two of them.
#pragma once

#include "support/forwarding_device.h"

namespace barestep {

class DistantEvents : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  [[nodiscard]] DeviceKind kind() const override { return DeviceKind::kCuda; }
  /// Events for waits are the inner device's own, since its streams accept no others.
  std::unique_ptr<Event> new_event(EventUse use) override {
    auto event = inner().new_event(use);
    if (use == EventUse::kOrder) return event;
    return std::make_unique<ForwardingEvent>(std::move(event));
  }
};

}  // namespace barestep
