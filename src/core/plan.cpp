#include "core/plan.h"

#include <algorithm>

#include "core/error.h"
#include "core/index.h"
#include "core/units.h"

namespace barestep {
namespace {

std::int64_t rounded_up(const Buffer& buffer) {
  return checked_add(buffer.bytes, kPlanAlignmentBytes - 1, buffer.name) / kPlanAlignmentBytes *
         kPlanAlignmentBytes;
}

/// The entry of a device; throws Error(kBug) when there is none.
template <class T>
const T& entry_of(const std::vector<T>& by_device, int device) {
  BARESTEP_REQUIRE(device >= 0 && device < static_cast<int>(by_device.size()),
                   "no such device in the memory plan");
  return at(by_device, device);
}

}  // namespace

MemoryPlan::MemoryPlan(const Buffers& buffers) {
  int devices = 1;
  for (const Buffer& buffer : buffers.all()) devices = std::max(devices, buffer.device + 1);
  device_.resize(static_cast<std::size_t>(devices));
  pinned_.resize(static_cast<std::size_t>(devices));
  for (const Buffer& buffer : buffers.all()) {
    auto& allocation = at(buffer.pinned ? pinned_ : device_, buffer.device);
    const std::int64_t slot_bytes = rounded_up(buffer);
    const std::int64_t bytes = checked_multiply(slot_bytes, buffer.slots, buffer.name);
    places_.push_back({allocation.bytes, slot_bytes, buffer.slots});
    allocation.bytes = checked_add(allocation.bytes, bytes, "all buffers of a device");
    allocation.by_category[buffer.category] += bytes;
  }
}

std::int64_t MemoryPlan::device_bytes(int device) const {
  return entry_of(device_, device).bytes;
}

std::int64_t MemoryPlan::pinned_bytes(int device) const {
  return entry_of(pinned_, device).bytes;
}

std::int64_t MemoryPlan::category_bytes(int device, Category category) const {
  return entry_of(device_, device).by_category[category];
}

std::int64_t MemoryPlan::pinned_category_bytes(int device, Category category) const {
  return entry_of(pinned_, device).by_category[category];
}

const MemoryPlan::Place& MemoryPlan::place(BufferId buffer) const {
  BARESTEP_REQUIRE(buffer >= 0 && buffer < static_cast<int>(places_.size()),
                   "no such buffer in the memory plan");
  return at(places_, buffer);
}

std::int64_t MemoryPlan::offset_bytes(BufferId buffer, int slot) const {
  const Place& found = place(buffer);
  BARESTEP_REQUIRE(slot >= 0 && slot < found.slots, "no such slot in the memory plan");
  return found.offset_bytes + slot * found.slot_bytes;
}

std::int64_t MemoryPlan::slot_bytes(BufferId buffer) const {
  return place(buffer).slot_bytes;
}

std::int64_t MemoryPlan::buffer_bytes(BufferId buffer) const {
  const Place& found = place(buffer);
  return found.slots * found.slot_bytes;
}

}  // namespace barestep
