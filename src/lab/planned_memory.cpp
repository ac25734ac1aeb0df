#include "lab/planned_memory.h"

#include "core/config.h"
#include "core/plan.h"
#include "lab/step_programs.h"
#include "train/memory_check.h"

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

void require_memory(const Workload& workload, std::int64_t free_bytes) {
  if (workload.pytorch) return;
  const WorkloadPrograms programs(workload);
  // Ranks and devices take turns on the GPUs, so the first has most of them.
  const int places = workload.on_gpu ? workload.gpus : 1;
  MemoryPool pool{.name = workload.on_gpu ? "a GPU" : "this machine",
                  .kind = workload.on_gpu ? DeviceKind::kCuda : DeviceKind::kCpu,
                  .available_bytes = free_bytes};
  if (workload.trainer == TrainerKind::kDdp) pool.sharers = (workload.ranks + places - 1) / places;
  for (int i = places; i < workload.ranks && workload.trainer == TrainerKind::kDataParallel;
       i += places) {
    pool.devices.push_back(i);
  }
  require_memory(programs.steps(), pool);
}

}  // namespace barestep
