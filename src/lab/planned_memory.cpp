#include "lab/planned_memory.h"

#include "core/config.h"
#include "core/plan.h"
#include "lab/step_programs.h"

namespace barestep {

std::vector<DeviceMemory> planned_memory(const Workload& workload) {
  const WorkloadPrograms programs(workload);
  const MemoryPlan plan(programs.steps().buffers());
  std::vector<DeviceMemory> devices;
  for (int device = 0; device < plan.devices(); ++device) {
    DeviceMemory memory{.bytes = plan.device_bytes(device)};
    for (int i = 0; i < kCategories; ++i) {
      memory.by_category[static_cast<std::size_t>(i)] =
          plan.category_bytes(device, static_cast<Category>(i));
    }
    devices.push_back(memory);
  }
  return devices;
}

}  // namespace barestep
