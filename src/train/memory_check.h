// Refuses a run that does not fit, before anything is allocated, and says what would.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/plan.h"
#include "train/step.h"

namespace barestep {

/// Memory that some of a program's devices take from.
struct MemoryPool {
  std::string name;  // as messages show it
  DeviceKind kind = DeviceKind::kCpu;
  std::int64_t available_bytes = 0;
  int sharers = 1;                 // processes that take as much from it, this one included
  std::vector<int> devices = {0};  // of the programs; those that they do not use count as nothing
  std::int64_t beside_bytes = 0;   // that something else takes from it, for each sharer
  std::string_view beside{};       // what that is
};

/// Whether the plan of `programs` needs no more than there is for this process.
bool fits(const StepPrograms& programs, const MemoryPool& pool);

/// Throws Error(kMemory) when it does not fit.
void require_memory(const StepPrograms& programs, const MemoryPool& pool);

/// The same for device 0 alone, and `sharers` ranks.
void require_memory(const StepPrograms& programs, std::int64_t available_bytes, DeviceKind kind,
                    std::string_view device_name, int sharers = 1);

}  // namespace barestep
