// Memory over a step: which of an arena's buffers hold something that is still needed, op by op.
//
// The arena is one allocation and never changes; what changes is how much of it is in use. That is
// what a caching allocator, such as PyTorch's, would have had to hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan.h"
#include "core/program.h"
#include "profiler/profile.h"
#include "profiler/trace.h"

namespace barestep {

/// While one node runs.
struct MemoryPoint {
  NodeId node = 0;
  std::vector<BufferId> begins;  // come into use with it
  std::vector<BufferId> ends;    // are last used by it
  EnumArray<Category, std::int64_t> in_use_bytes{};

  [[nodiscard]] std::int64_t total_bytes() const;
};

struct MemoryTimeline {
  std::vector<MemoryPoint> points;  // of the device's nodes, in the order of the program
  std::int64_t reserved_bytes = 0;  // the arena
  std::size_t highest = 0;          // the first of the points with the most in use
};

/// A buffer is in use from the first node that touches it to the last one. Where that first touch
/// reads, or the buffer has two slots, or no node touches it, it is in use all the time: its
/// content is another step's too. Device memory only; sizes are the plan's, padding included.
MemoryTimeline memory_timeline(const Program& program, const MemoryPlan& plan, int device);

/// The ops that change what is in use, at most `row_limit` of them, and the high-water mark with
/// what it is made of. Empty for a program without nodes on the device.
std::string memory_table(const Program& program, const MemoryPlan& plan, int device,
                         std::int64_t row_limit);

/// Adds a counter of every category, and PyTorch's [memory] events, at the times of the profile.
void add_memory(TraceEvents& events, const Profile& profile, const MemoryPlan& plan,
                const TraceContext& context);

}  // namespace barestep
