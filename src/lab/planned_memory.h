// The memory of a workload, from its plan; nothing is allocated.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/program.h"
#include "lab/workload.h"

namespace barestep {

/// Of one device, in its own memory.
struct DeviceMemory {
  std::int64_t bytes = 0;
  std::array<std::int64_t, kCategories> by_category{};
};

/// By device of mlp_single and mlp_dp; of mlp_ddp that of one rank, the first.
std::vector<DeviceMemory> planned_memory(const Workload& workload);

/// Throws Error(kMemory), with a size that fits, when the workload needs more than `free_bytes`: of
/// the machine, which all ranks and devices on the CPU share, or of its fullest GPU. A run of
/// PyTorch's has no plan, and is not looked at.
void require_memory(const Workload& workload, std::int64_t free_bytes);

}  // namespace barestep
