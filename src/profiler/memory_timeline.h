// Memory over a step: for each op, which of an arena's buffers contain data that are still needed.
//
// The arena is one allocation and never changes; only the part in use changes. That part is what a
// caching allocator, such as PyTorch's, would have had to allocate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan.h"
#include "core/program.h"
#include "profiler/profile.h"
#include "profiler/trace.h"

namespace barestep {

/// The memory during one node.
struct MemoryPoint {
  NodeId node = 0;
  std::vector<BufferId> begins;  // buffers whose first use this is
  std::vector<BufferId> ends;    // buffers whose last use this is
  EnumArray<Category, std::int64_t> in_use_bytes{};

  [[nodiscard]] std::int64_t total_bytes() const;
};

struct MemoryTimeline {
  std::vector<MemoryPoint> points;  // for the device's nodes, in program order
  std::int64_t reserved_bytes = 0;  // size of the arena
  std::size_t highest = 0;          // index of the first point with the highest use
};

/// A buffer is in use from the first node that touches it to the last. It is in use all the time if
/// the first touch reads, if it has two slots, or if no node touches it: then it holds data of
/// other steps too. Covers only device memory; sizes are the plan's, padding included.
MemoryTimeline memory_timeline(const Program& program, const MemoryPlan& plan, int device);

/// "At most 1.20 MiB of the 1.50 MiB are in use, at #12 backward gemm of net.2: parameters 1.00
/// MiB,
/// ...". At least one point.
std::string high_water_text(const Program& program, const MemoryTimeline& timeline);

/// The ops that change the memory in use, at most `row_limit` of them, and the high-water mark with
/// its composition. Empty for a program without nodes on the device.
std::string memory_table(const Program& program, const MemoryPlan& plan, int device,
                         std::int64_t row_limit);

/// Adds a counter for every category and PyTorch's [memory] events, at the times in the profile.
void add_memory(TraceEvents& events, const Profile& profile, const MemoryPlan& plan,
                const TraceContext& context);

}  // namespace barestep
