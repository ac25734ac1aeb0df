// The arena: all memory that a run uses on one device, allocated once and laid out as planned.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/addresses.h"
#include "core/device.h"
#include "core/plan.h"
#include "core/program.h"

namespace barestep {

/// Owns one allocation of device memory and one of pinned memory. `device`, `plan` and `buffers`
/// must outlive the arena.
class Arena {
 public:
  /// Allocates what the plan assigns to this device; throws Error(kMemory). Pinned buffers are in
  /// `host_kind` memory. Blocks.
  Arena(Device& device, const MemoryPlan& plan, const Buffers& buffers,
        MemoryKind host_kind = MemoryKind::kPinned);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  Arena& operator=(Arena&&) = delete;

  /// The address of a slot of a buffer; the buffer must belong to this device.
  [[nodiscard]] std::byte* at(BufferId buffer, int slot) const;

  /// The end of the highest device byte that at() has returned so far. Once every buffer is bound,
  /// it equals the plan's size.
  [[nodiscard]] std::int64_t high_water_bytes() const { return high_water_bytes_; }

 private:
  Device* device_;
  const MemoryPlan* plan_;
  const Buffers* buffers_;
  MemoryKind host_kind_;
  std::byte* memory_ = nullptr;
  std::byte* pinned_ = nullptr;
  mutable std::int64_t high_water_bytes_ = 0;
};

/// The address tables of even and odd steps: table s binds every two-slot buffer to its slot s.
std::array<Addresses, 2> bind(const Buffers& buffers, std::span<const Arena> arenas);

}  // namespace barestep
