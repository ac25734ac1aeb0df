#include "lab/step_programs.h"

#include "parallel/data_parallel.h"
#include "parallel/ddp.h"
#include "parallel/factor.h"
#include "parallel/zero1.h"
#include "train/trainer.h"

namespace barestep {
namespace {

TrainConfig config_of(const Workload& workload) {
  TrainConfig config;
  config.model.dim = workload.dim;
  config.model.depth = workload.depth;
  config.data.batch_size = workload.batch_size;
  config.parallel.scheme = workload.scheme;
  return config;
}

std::unique_ptr<Scheme> rank_scheme_of(const ParallelConfig& parallel) {
  if (parallel.scheme == RankScheme::kZero1) return std::make_unique<Zero1>();
  if (parallel.scheme == RankScheme::kFactor) return std::make_unique<Factor>();
  return std::make_unique<Ddp>(ddp_settings_of(parallel));
}

}  // namespace

WorkloadPrograms::WorkloadPrograms(const Workload& workload)
    : WorkloadPrograms(config_of(workload), workload.trainer, workload.ranks,
                       workload.on_gpu ? DeviceKind::kCuda : DeviceKind::kCpu) {}

WorkloadPrograms::WorkloadPrograms(const TrainConfig& config, TrainerKind trainer, int ranks,
                                   DeviceKind kind) {
  switch (trainer) {
    case TrainerKind::kSingle:
      steps_ = std::make_unique<StepPrograms>(spec_of(config, kind, nullptr));
      return;
    case TrainerKind::kDataParallel:
      scheme_ = std::make_unique<DataParallel>(ranks, kind == DeviceKind::kCuda);
      steps_ = std::make_unique<StepPrograms>(spec_of(config, kind, nullptr), scheme_.get());
      return;
    case TrainerKind::kDdp:
      scheme_ = rank_scheme_of(config.parallel);
      steps_ = std::make_unique<StepPrograms>(spec_of_rank(config, kind, nullptr, 0, ranks),
                                              scheme_.get());
      return;
  }
}

}  // namespace barestep
