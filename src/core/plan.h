// The memory plan: where every buffer lies, before anything is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/program.h"

namespace barestep {

/// Every slot of every buffer starts on such a boundary.
constexpr std::int64_t kPlanAlignmentBytes = 256;

/// Each device has one allocation in its own memory and one in pinned host memory; the buffers lie
/// in them in the order of the table, the slots of one after each other. Sizes are rounded up to
/// kPlanAlignmentBytes and count in their category, so the categories sum to the allocation
/// exactly.
class MemoryPlan {
 public:
  /// Throws Error(kMemory) when a device needs more than 2^63 - 1 bytes.
  explicit MemoryPlan(const Buffers& buffers);

  /// One more than the largest device of any buffer; at least 1.
  [[nodiscard]] int devices() const { return static_cast<int>(device_.size()); }

  /// The device's allocation in its own memory, and in pinned host memory.
  [[nodiscard]] std::int64_t device_bytes(int device) const;
  [[nodiscard]] std::int64_t pinned_bytes(int device) const;

  /// What a category takes of it, all slots and padding included.
  [[nodiscard]] std::int64_t category_bytes(int device, Category category) const;
  [[nodiscard]] std::int64_t pinned_category_bytes(int device, Category category) const;

  /// Where a slot begins, inside the allocation its buffer lies in.
  [[nodiscard]] std::int64_t offset_bytes(BufferId buffer, int slot) const;

  /// What one slot of a buffer takes, padding included.
  [[nodiscard]] std::int64_t slot_bytes(BufferId buffer) const;

  /// What all slots of a buffer take, padding included.
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
