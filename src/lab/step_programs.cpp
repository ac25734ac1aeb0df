#include "lab/step_programs.h"

#include "options/options.h"
#include "parallel/schemes.h"
#include "train/trainer.h"

namespace barestep {
WorkloadPrograms::WorkloadPrograms(const Workload& workload)
    : WorkloadPrograms(workload.config, workload.trainer, workload.ranks,
                       workload.on_gpu ? DeviceKind::kCuda : DeviceKind::kCpu) {}

WorkloadPrograms::WorkloadPrograms(const TrainConfig& config, TrainerKind trainer, int ranks,
                                   DeviceKind kind) {
  validate(config, trainer);
  scheme_ =
      scheme_of(config, trainer, {.devices = ranks, .adds_by_pieces = kind == DeviceKind::kCuda});
  const StepSpec spec = trainer == TrainerKind::kDdp ? spec_of_rank(config, kind, nullptr, 0, ranks)
                                                     : spec_of(config, kind, nullptr);
  steps_ = std::make_unique<StepPrograms>(spec, scheme_.get());
}

}  // namespace barestep
