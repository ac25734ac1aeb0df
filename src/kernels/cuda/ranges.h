// Ranges for the tools that watch CUDA programs, such as Nsight Systems: by NVTX.
#pragma once

#include <string_view>

namespace barestep {

/// What this thread queues between begin and end belongs to a range of that name, which is static
/// text. Costs one test of a pointer if no tool is attached.
void begin_range(std::string_view name);
void end_range();

/// For as long as it lives.
class ToolRange {
 public:
  explicit ToolRange(std::string_view name) { begin_range(name); }
  ~ToolRange() { end_range(); }
  ToolRange(const ToolRange&) = delete;
  ToolRange& operator=(const ToolRange&) = delete;
};

}  // namespace barestep
