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

}  // namespace barestep
