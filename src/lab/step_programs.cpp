#include "lab/step_programs.h"

#include "core/config.h"
#include "parallel/data_parallel.h"
#include "parallel/ddp.h"
#include "train/trainer.h"

namespace barestep {

WorkloadPrograms::WorkloadPrograms(const Workload& workload) {
  TrainConfig config;
  config.model.dim = workload.dim;
  config.model.depth = workload.depth;
  config.data.batch_size = workload.batch_size;
  const DeviceKind kind = workload.on_gpu ? DeviceKind::kCuda : DeviceKind::kCpu;
  switch (workload.trainer) {
    case TrainerKind::kSingle:
      steps_ = std::make_unique<StepPrograms>(spec_of(config, kind, nullptr));
      return;
    case TrainerKind::kDataParallel:
      scheme_ = std::make_unique<DataParallel>(workload.ranks, workload.on_gpu);
      steps_ = std::make_unique<StepPrograms>(spec_of(config, kind, nullptr), scheme_.get());
      return;
    case TrainerKind::kDdp:
      scheme_ = std::make_unique<Ddp>(ddp_settings_of(config.parallel));
      steps_ = std::make_unique<StepPrograms>(
          spec_of_rank(config, kind, nullptr, 0, workload.ranks), scheme_.get());
      return;
  }
}

}  // namespace barestep
