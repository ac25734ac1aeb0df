// NVTX ranges for tools that observe CUDA programs, such as Nsight Systems.
#pragma once

#include <string_view>

namespace barestep {

/// Work that this thread queues between begin and end belongs to a range with this name, which must
/// be static text. Costs one test of a pointer if no tool is attached.
void begin_range(std::string_view name);
void end_range();

/// A range that lasts as long as this object.
class ToolRange {
 public:
  explicit ToolRange(std::string_view name) { begin_range(name); }
  ~ToolRange() { end_range(); }
  ToolRange(const ToolRange&) = delete;
  ToolRange& operator=(const ToolRange&) = delete;
};

}  // namespace barestep
