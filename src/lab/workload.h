// A run of one of the trainers: what is measured, planned and predicted.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/program.h"
#include "train/step.h"

namespace barestep {

struct Workload {
  TrainerKind trainer = TrainerKind::kSingle;
  int ranks = 1;  // processes of mlp_ddp, devices of mlp_dp
  bool on_gpu = false;
  int gpus = 1;          // there are; more devices of mlp_dp take turns on them
  bool pytorch = false;  // runs pytorch/practical.py in place of our trainer
  TrainConfig
      config{};  // the configuration that the trainer receives; the batch is that of all ranks

  [[nodiscard]] std::int64_t dim() const { return config.model.dim.value(); }
  [[nodiscard]] std::int64_t depth() const { return config.model.depth.value(); }
  [[nodiscard]] std::int64_t batch_size() const { return config.data.batch_size; }
  /// Samples of a whole step, all ranks together.
  [[nodiscard]] std::int64_t step_samples() const {
    return batch_size() * config.training.accumulate;
  }
  [[nodiscard]] std::int64_t steps() const {
    return config.training.steps.value_or(kDefaultSteps);  // an evaluation has none
  }

  friend bool operator==(const Workload&, const Workload&) = default;
};

/// Its program, or "practical.py".
std::string_view program_of(const Workload& workload);

/// The options of the trainer, or of the script, without its name.
std::vector<std::string> arguments_of(const Workload& workload);

/// What a person types: `mpirun -np 2 mlp_ddp --dim 1024 ...`.
std::string command_line_of(const Workload& workload);

// The programs that a workload would run, and the memory of their plan; nothing is allocated.

class WorkloadPrograms {
 public:
  /// Of one rank of mlp_ddp; other trainers have rank 0 alone.
  explicit WorkloadPrograms(const Workload& workload, int rank = 0);

  /// Of any model. `ranks` are processes or devices, the batch that of all. Throws what validate()
  /// throws.
  WorkloadPrograms(const TrainConfig& asked, TrainerKind trainer, int ranks, DeviceKind kind,
                   int rank = 0);

  [[nodiscard]] const StepPrograms& steps() const { return *steps_; }
  /// A training step, or a batch of an evaluation.
  [[nodiscard]] const Program& step() const { return steps_->all().front()->program; }

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
/// PyTorch's has no plan and is not checked.
void require_memory(const Workload& workload, std::int64_t free_bytes);

}  // namespace barestep
