// The memory plan: where every buffer is placed, before anything is allocated.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program.h"

namespace barestep {

/// Every slot of every buffer is aligned to this.
constexpr std::int64_t kPlanAlignmentBytes = 256;

/// Each device has one allocation in its own memory and one in pinned host memory. They hold the
/// buffers in the order of the table, with each buffer's slots in sequence. Sizes are rounded up to
/// kPlanAlignmentBytes, and the padding counts towards the buffer's category, so the categories sum
/// to the allocation exactly.
class MemoryPlan {
 public:
  /// Throws Error(kMemory) when a device needs more than 2^63 - 1 bytes.
  explicit MemoryPlan(const Buffers& buffers);

  /// One more than the largest device of any buffer; at least 1.
  [[nodiscard]] int devices() const { return static_cast<int>(device_.size()); }

  /// The sizes of the device's allocation in its own memory and in pinned host memory.
  [[nodiscard]] std::int64_t device_bytes(int device) const;
  [[nodiscard]] std::int64_t pinned_bytes(int device) const;

  /// A category's share of these, all slots and padding included.
  [[nodiscard]] std::int64_t category_bytes(int device, Category category) const;
  [[nodiscard]] std::int64_t pinned_category_bytes(int device, Category category) const;

  /// A slot's offset in the allocation that holds its buffer.
  [[nodiscard]] std::int64_t offset_bytes(BufferId buffer, int slot) const;

  /// The size of one slot of a buffer, padding included.
  [[nodiscard]] std::int64_t slot_bytes(BufferId buffer) const;

  /// The size of all slots of a buffer, padding included.
  [[nodiscard]] std::int64_t buffer_bytes(BufferId buffer) const;

 private:
  struct Allocation {
    std::int64_t bytes = 0;
    EnumArray<Category, std::int64_t> by_category{};
  };
  struct Place {
    std::int64_t offset_bytes = 0;
    std::int64_t slot_bytes = 0;  // rounded up
    int slots = 1;
  };

  [[nodiscard]] const Place& place(BufferId buffer) const;

  std::vector<Allocation> device_;  // by device
  std::vector<Allocation> pinned_;  // by device
  std::vector<Place> places_;       // by buffer
};

}  // namespace barestep
