// What mlp_lab measures, plans and predicts: a run of a trainer, or what it is compared with.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/mesh.h"
#include "core/program.h"
#include "parallel/schemes/run.h"
#include "profiler/data_parallel_account.h"
#include "train/step.h"

namespace barestep {

struct Workload : Run {
  bool pytorch = false;  // runs pytorch/practical.py in place of our trainer

  friend bool operator==(const Workload&, const Workload&) = default;
};

/// Name of its program, or "practical.py".
std::string_view program_of(const Workload& workload);

/// The options of the program or the script, without its name.
std::vector<std::string> arguments_of(const Workload& workload);

/// The command line as a person would type it: `mpirun -np 2 mlp_ddp --dim 1024 ...`.
std::string command_line_of(const Workload& workload);

/// Whether the trainer tries both ways to update in its warm-up and keeps the faster one.
bool tries_updates(const Run& run);

// The programs of a run, and the memory of their plan. Allocates nothing.

class WorkloadPrograms {
 public:
  /// The programs of one rank of mlp_ddp; other trainers have only rank 0. Throws as require()
  /// does.
  explicit WorkloadPrograms(const Run& run, int rank = 0);

  [[nodiscard]] const StepPrograms& steps() const { return *steps_; }
  /// Of all processes, or of the devices of one process.
  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  /// A training step, or a batch of an evaluation.
  [[nodiscard]] const Program& step() const { return steps_->all().front()->program; }
  /// Of local SGD, a step after which no weights are averaged.
  [[nodiscard]] const Program& local_step() const { return steps_->of({}, true).program; }

 private:
  std::unique_ptr<Scheme> scheme_;
  std::unique_ptr<StepPrograms> steps_;
  Mesh mesh_{};
};

/// A rank of each stage of a pipeline of ranks, or only one: the slow rank, or its neighbor in that
/// stage, else the first. The others of the stage do the same, except with parameter servers: then
/// these are all ranks.
std::vector<int> ranks_to_simulate(const Run& run);

/// The programs of several ranks of a run.
class RankPrograms {
 public:
  /// Of ranks_to_simulate(), or of these. Throws as require() does.
  explicit RankPrograms(const Run& run) : RankPrograms(run, ranks_to_simulate(run)) {}
  RankPrograms(const Run& run, std::vector<int> ranks);

  [[nodiscard]] std::span<const int> ranks() const { return ranks_; }
  [[nodiscard]] const WorkloadPrograms& of(std::size_t index) const { return *programs_[index]; }
  /// The memory of the one that needs most.
  [[nodiscard]] std::int64_t max_bytes() const;

 private:
  std::vector<int> ranks_;
  std::vector<std::unique_ptr<WorkloadPrograms>> programs_;
};

/// The memory of one device.
struct DeviceMemory {
  std::int64_t bytes = 0;
  EnumArray<Category, std::int64_t> by_category{};
};

/// By device for mlp_single and mlp_dp; for mlp_ddp only that of the first rank.
std::vector<DeviceMemory> planned_memory(const Run& run);
std::vector<DeviceMemory> planned_memory(const WorkloadPrograms& programs);

/// The memory of the rank of mlp_ddp that needs most.
std::int64_t max_rank_bytes(const Run& run);

/// The memory of the device that needs most, of any trainer.
std::int64_t max_device_bytes(const Run& run);

/// What a step moves between the devices of mlp_dp.
Traffic traffic_of(const Run& run);

/// Throws Error(kMemory), with a size that fits, if the workload needs more than `free_bytes`: of
/// the machine's memory, shared by all ranks and devices on the CPU, or of its fullest GPU's. A run
/// of PyTorch has no plan and is not checked.
void require_memory(const Workload& workload, std::int64_t free_bytes);

}  // namespace barestep
