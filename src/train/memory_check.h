// Rejects a run that does not fit in memory before anything is allocated, and suggests what would
// fit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/plan.h"
#include "train/step.h"

namespace barestep {

/// Memory that some devices of a program allocate from.
struct MemoryPool {
  std::string name;  // as messages show it
  DeviceKind kind = DeviceKind::kCpu;
  std::int64_t available_bytes = 0;
  int sharers = 1;                 // processes that each use as much of it, including this one
  std::vector<int> devices = {0};  // of the programs; unused ones need nothing
  std::int64_t beside_bytes = 0;   // used by something else, for each sharer
  std::string_view beside{};       // the name of that other use
  bool is_of_host = false;  // the host's memory, where GPUs' devices have pinned buffers only
};

/// The free memory of this host, for the pinned buffers of these GPUs and those of as many in each
/// of `sharers` processes.
MemoryPool host_pool(std::vector<int> devices, int sharers = 1);

/// Whether the plan of `programs` fits in the memory for this process.
bool fits(const StepPrograms& programs, const MemoryPool& pool);

/// Throws Error(kMemory) if it does not fit.
void require_memory(const StepPrograms& programs, const MemoryPool& pool);

/// The same for device 0 only, with `sharers` ranks.
void require_memory(const StepPrograms& programs, std::int64_t available_bytes, DeviceKind kind,
                    std::string_view device_name, int sharers = 1);

}  // namespace barestep
