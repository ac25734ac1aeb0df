#include "lab/predict/workload.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/index.h"
#include "core/plan.h"
#include "options/options.h"
#include "parallel/schemes/ddp.h"
#include "parallel/schemes/scheme_of.h"
#include "train/memory_check.h"
#include "train/schedule.h"

namespace barestep {

std::string_view program_of(const Workload& workload) {
  return workload.pytorch ? "practical.py" : program_name(workload.config);
}

namespace {

/// The arguments of practical.py, which has no other options.
std::vector<std::string> arguments_of_script(const Workload& workload) {
  return {"--trainer",    std::string(name_of(program_of(workload.scheme()).usual)),
          "--ranks",      std::to_string(workload.ranks),
          "--dim",        std::to_string(workload.dim()),
          "--depth",      std::to_string(workload.depth()),
          "--activation", std::string(name_of(workload.config.model.activation)),
          "--steps",      std::to_string(workload.steps()),
          "--batch-size", std::to_string(workload.batch_size()),
          "--device",     workload.on_gpu ? "cuda" : "cpu",
          "--threads",    std::to_string(workload.config.device.threads.value_or(0))};
}

/// Of a rank, with as many samples as its files have.
StepSpec spec_with_rows(const Run& run, int rank) {
  StepSpec spec = spec_of(run, rank);
  if (run.config.data.kind != DataKind::kRandn) spec.input.train_rows = run.data_rows;
  return spec;
}

}  // namespace

std::vector<std::string> arguments_of(const Workload& workload) {
  if (workload.pytorch) return arguments_of_script(workload);
  return arguments_of(workload.config);
}

std::string command_line_of(const Workload& workload) {
  if (workload.pytorch) {
    return fmt::format("python3 src/lab/pytorch/practical.py {}",
                       fmt::join(arguments_of(workload), " "));
  }
  return fmt::format("{}{} {}",
                     workload.has_ranks() ? fmt::format("mpirun -np {} ", workload.ranks) : "",
                     program_of(workload), fmt::join(arguments_of(workload), " "));
}

bool tries_updates(const Run& run) {
  const TrainingConfig& training = run.config.training;
  return training.update == Update::kAuto && !training.evaluate_only &&
         choose_update(run.config, run.kind()).is_to_be_measured &&
         steps_of_trial(training, spec_with_rows(run, 0), 0) > 0;
}

WorkloadPrograms::WorkloadPrograms(const Run& run, int rank) {
  require(run);
  Run resolved = run;
  TrainConfig& config = resolved.config;
  if (config.training.update == Update::kAuto) {
    config.training.update = choose_update(config, run.kind()).update;
  }
  scheme_ = scheme_of(config, {.devices = run.ranks, .adds_by_pieces = run.on_gpu});
  StepSpec spec = spec_with_rows(resolved, rank);
  mesh_ = run.has_ranks() ? spec.mesh : mesh_of(run);
  if (config.training.evaluate_only) {
    spec.input.train_rows = config.data.batch_size;
    spec = evaluation_spec_of(spec);
  }
  steps_ = std::make_unique<StepPrograms>(spec, scheme_.get());
}

std::vector<int> ranks_to_simulate(const Run& run) {
  const Mesh mesh = mesh_of(run);
  std::vector<int> ranks;
  if (run.config.parallel.scheme == SchemeKind::kServer) {
    for (int rank = 0; rank < mesh.ranks(); ++rank) ranks.push_back(rank);
    return ranks;
  }
  const std::optional<SlowRank>& slow = run.config.injected.slow_rank;
  const int first = slow ? static_cast<int>(slow->rank) % mesh.ranks_of_stage() : 0;
  for (int stage = 0; stage < mesh.pipeline; ++stage) {
    ranks.push_back(first + stage * mesh.ranks_of_stage());
  }
  return ranks;
}

RankPrograms::RankPrograms(const Run& run, std::vector<int> ranks) : ranks_(std::move(ranks)) {
  for (const int rank : ranks_) programs_.push_back(std::make_unique<WorkloadPrograms>(run, rank));
}

std::int64_t RankPrograms::max_bytes() const {
  std::int64_t max = 0;
  for (const auto& programs : programs_) {
    max = std::max(max, MemoryPlan(programs->steps().buffers()).device_bytes(0));
  }
  return max;
}

std::vector<DeviceMemory> planned_memory(const Run& run) {
  return planned_memory(WorkloadPrograms(run));
}

std::vector<DeviceMemory> planned_memory(const WorkloadPrograms& programs) {
  const MemoryPlan plan(programs.steps().buffers());
  std::vector<DeviceMemory> devices;
  for (int device = 0; device < plan.devices(); ++device) {
    DeviceMemory memory{.bytes = plan.device_bytes(device)};
    for (const Category category : kValuesOf<Category>) {
      memory.by_category[category] = plan.category_bytes(device, category);
    }
    devices.push_back(memory);
  }
  return devices;
}

std::int64_t max_rank_bytes(const Run& run) {
  const Mesh mesh = mesh_of(run);
  std::vector<int> firsts;  // of each stage, which have most rows
  for (int rank = 0; rank < mesh.ranks(); rank += mesh.ranks_of_stage()) firsts.push_back(rank);
  return RankPrograms(run, std::move(firsts)).max_bytes();
}

std::int64_t max_device_bytes(const Run& run) {
  if (run.has_ranks()) return max_rank_bytes(run);
  return std::ranges::max(planned_memory(run), {}, &DeviceMemory::bytes).bytes;
}

Traffic traffic_of(const Run& run) {
  return traffic_of(WorkloadPrograms(run).step(), run.ranks,
                    run.on_gpu ? Route::kRing : Route::kStar);
}

void require_memory(const Workload& workload, std::int64_t free_bytes) {
  if (workload.pytorch) return;
  const WorkloadPrograms programs(workload);
  // Ranks and devices are spread over the GPUs in turn, so the first GPU has the most.
  const int places = workload.on_gpu ? workload.gpus : 1;
  MemoryPool pool{.name = workload.on_gpu ? "a GPU" : "this machine",
                  .kind = workload.on_gpu ? DeviceKind::kCuda : DeviceKind::kCpu,
                  .available_bytes = free_bytes};
  if (workload.has_ranks()) pool.sharers = (workload.ranks + places - 1) / places;
  for (int i = places; i < workload.ranks && workload.scheme() == SchemeKind::kDataParallel;
       i += places) {
    pool.devices.push_back(i);
  }
  require_memory(programs.steps(), pool);
}

}  // namespace barestep
