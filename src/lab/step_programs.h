// The programs that a workload would run, for the plan and the prediction of it.
#pragma once

#include <memory>

#include "core/config.h"
#include "core/device.h"
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

}  // namespace barestep
