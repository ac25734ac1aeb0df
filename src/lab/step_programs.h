// The programs that a workload would run, and the memory of their plan; nothing is allocated.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/program.h"
#include "lab/workload.h"
#include "train/step.h"

namespace barestep {

class WorkloadPrograms {
 public:
  /// Of rank 0 of mlp_ddp.
  explicit WorkloadPrograms(const Workload& workload);

  /// Of any model. `ranks` are processes or devices, the batch that of all. Throws what validate()
  /// throws.
  WorkloadPrograms(const TrainConfig& config, TrainerKind trainer, int ranks, DeviceKind kind);

  [[nodiscard]] const StepPrograms& steps() const { return *steps_; }
  [[nodiscard]] const Program& step() const { return steps_->train().program; }

 private:
  std::unique_ptr<Scheme> scheme_;
  std::unique_ptr<StepPrograms> steps_;
};

/// Of one device, in its own memory.
struct DeviceMemory {
  std::int64_t bytes = 0;
  EnumArray<Category, std::int64_t> by_category{};
};

/// By device of mlp_single and mlp_dp; of mlp_ddp that of one rank, the first.
std::vector<DeviceMemory> planned_memory(const Workload& workload);

/// Throws Error(kMemory), with a size that fits, when the workload needs more than `free_bytes`: of
/// the machine, which all ranks and devices on the CPU share, or of its fullest GPU. A run of
/// PyTorch's has no plan, and is not looked at.
void require_memory(const Workload& workload, std::int64_t free_bytes);

}  // namespace barestep
