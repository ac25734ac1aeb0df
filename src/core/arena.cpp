#include "core/arena.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/index.h"

namespace barestep {

Arena::Arena(Device& device, const MemoryPlan& plan, const Buffers& buffers, MemoryKind host_kind)
    : device_(&device), plan_(&plan), buffers_(&buffers), host_kind_(host_kind) {
  const std::int64_t bytes = plan.device_bytes(device.index());
  const std::int64_t pinned_bytes = plan.pinned_bytes(device.index());
  if (bytes > 0) memory_ = device.allocate(bytes, MemoryKind::kDevice);
  if (pinned_bytes > 0) {
    try {
      pinned_ = device.allocate(pinned_bytes, host_kind_);
    } catch (...) {
      if (memory_ != nullptr) device.release(memory_, MemoryKind::kDevice);
      throw;
    }
  }
}

Arena::~Arena() {
  if (memory_ != nullptr) device_->release(memory_, MemoryKind::kDevice);
  if (pinned_ != nullptr) device_->release(pinned_, host_kind_);
}

Arena::Arena(Arena&& other) noexcept
    : device_(other.device_),
      plan_(other.plan_),
      buffers_(other.buffers_),
      host_kind_(other.host_kind_),
      memory_(std::exchange(other.memory_, nullptr)),
      pinned_(std::exchange(other.pinned_, nullptr)),
      high_water_bytes_(other.high_water_bytes_) {}

std::byte* Arena::at(BufferId id, int slot) const {
  const Buffer& buffer = (*buffers_)[id];
  BARESTEP_REQUIRE(buffer.device == device_->index(), "the buffer lies on another device");
  const std::int64_t offset_bytes = plan_->offset_bytes(id, slot);
  if (buffer.pinned) return pinned_ + offset_bytes;
  high_water_bytes_ = std::max(high_water_bytes_, offset_bytes + plan_->slot_bytes(id));
  return memory_ + offset_bytes;
}

std::array<Addresses, 2> bind(const Buffers& buffers, std::span<const Arena> arenas) {
  std::array<Addresses, 2> tables;
  for (int parity = 0; parity < 2; ++parity) {
    std::vector<std::byte*> base;
    for (BufferId id = 0; id < buffers.size(); ++id) {
      const Buffer& buffer = buffers[id];
      const auto& arena = at(arenas, buffer.device);
      base.push_back(arena.at(id, parity % buffer.slots));
    }
    at(tables, parity) = Addresses(std::move(base));
  }
  return tables;
}

}  // namespace barestep
