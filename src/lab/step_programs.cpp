#include "lab/step_programs.h"

#include "options/options.h"
#include "parallel/data_parallel.h"
#include "parallel/ddp.h"
#include "parallel/rank_scheme.h"
#include "train/trainer.h"

namespace barestep {
WorkloadPrograms::WorkloadPrograms(const Workload& workload)
    : WorkloadPrograms(workload.config, workload.trainer, workload.ranks,
                       workload.on_gpu ? DeviceKind::kCuda : DeviceKind::kCpu) {}

WorkloadPrograms::WorkloadPrograms(const TrainConfig& config, TrainerKind trainer, int ranks,
                                   DeviceKind kind) {
  validate(config, trainer);
  switch (trainer) {
    case TrainerKind::kSingle:
      steps_ = std::make_unique<StepPrograms>(spec_of(config, kind, nullptr));
      return;
    case TrainerKind::kDataParallel:
      scheme_ = std::make_unique<DataParallel>(ranks, kind == DeviceKind::kCuda);
      steps_ = std::make_unique<StepPrograms>(spec_of(config, kind, nullptr), scheme_.get());
      return;
    case TrainerKind::kDdp:
      scheme_ = rank_scheme_of(config);
      steps_ = std::make_unique<StepPrograms>(spec_of_rank(config, kind, nullptr, 0, ranks),
                                              scheme_.get());
      return;
  }
}

}  // namespace barestep
