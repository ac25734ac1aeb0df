// A device whose events, like a GPU's, only give the time between two of them.
#pragma once

#include <memory>
#include <utility>

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
    return std::make_unique<Distant>(std::move(event));
  }

 private:
  class Distant final : public Event {
   public:
    explicit Distant(std::unique_ptr<Event> inner) : inner_(std::move(inner)) {}
    void record(Stream& stream) override { inner_->record(stream); }
    [[nodiscard]] bool reached() const override { return inner_->reached(); }
    void synchronize() const override { inner_->synchronize(); }
    [[nodiscard]] double seconds_since(const Event& earlier) const override {
      return inner_->seconds_since(*static_cast<const Distant&>(earlier).inner_);
    }

   private:
    std::unique_ptr<Event> inner_;
  };
};

}  // namespace barestep
