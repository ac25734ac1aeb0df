// A run of one of the trainers, to be measured, planned and predicted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/mesh.h"
#include "core/program.h"
#include "profiler/data_parallel_account.h"
#include "train/step.h"

namespace barestep {

/// An all-reduce that is measured alone (measured_sum.h), on the device and by the transport of the
/// configuration. Its ranks are processes of MPI if the trainer is mlp_ddp, else threads of one
/// process.
struct MeasuredSum {
  std::int64_t bytes = 4;  // of each rank's fp32 numbers
  int algorithm = 0;       // of Open MPI (coll_tuned_allreduce_algorithm); 0: its choice

  friend bool operator==(const MeasuredSum&, const MeasuredSum&) = default;
};

struct Workload {
  TrainerKind trainer = TrainerKind::kSingle;
  int ranks = 1;  // processes of mlp_ddp, devices of mlp_dp
  bool on_gpu = false;
  int gpus = 1;                      // available GPUs; further devices of mlp_dp share them
  bool pytorch = false;              // runs pytorch/practical.py in place of our trainer
  std::optional<MeasuredSum> sum{};  // runs in place of a trainer's steps
  std::int64_t data_rows = 0;        // of its files, if it reads any
  TrainConfig
      config{};  // the configuration that the trainer receives; the batch is that of all ranks

  /// The largest width of the layers.
  [[nodiscard]] std::int64_t dim() const {
    const std::vector<std::int64_t>& layers = config.model.layers;
    return layers.empty() ? config.model.dim.value() : std::ranges::max(layers);
  }
  [[nodiscard]] std::int64_t depth() const {
    const std::vector<std::int64_t>& layers = config.model.layers;
    return layers.empty() ? config.model.depth.value()
                          : static_cast<std::int64_t>(layers.size()) - 1;
  }
  [[nodiscard]] std::int64_t batch_size() const { return config.data.batch_size; }
  /// Samples of a whole step over all ranks.
  [[nodiscard]] std::int64_t step_samples() const {
    return batch_size() * config.training.accumulate;
  }
  [[nodiscard]] std::int64_t steps() const {
    return config.training.steps.value_or(kDefaultSteps);  // an evaluation has none
  }

  friend bool operator==(const Workload&, const Workload&) = default;
};

/// Name of its program, "mlp_lab" for a sum, or "practical.py".
std::string_view program_of(const Workload& workload);

/// The options of the program or the script, without its name.
std::vector<std::string> arguments_of(const Workload& workload);

/// How its ranks are started, "-np 2" and what follows it; empty for a single process.
std::vector<std::string> mpirun_arguments_of(const Workload& workload);

/// The command line as a person would type it: `mpirun -np 2 mlp_ddp --dim 1024 ...`.
std::string command_line_of(const Workload& workload);

/// Of its processes, or of the devices of one process. Throws as mesh_of(config, ...) does.
Mesh mesh_of(const Workload& workload);

// The programs that a workload would run, and the memory of their plan. Allocates nothing.

class WorkloadPrograms {
 public:
  /// The programs of one rank of mlp_ddp; other trainers have only rank 0.
  explicit WorkloadPrograms(const Workload& workload, int rank = 0);

  /// The programs of any model. `ranks` is the number of processes or devices; the batch is that of
  /// all; files have `data_rows`. Throws as validate() does.
  WorkloadPrograms(const TrainConfig& requested, TrainerKind trainer, int ranks, DeviceKind kind,
                   int rank = 0, std::int64_t data_rows = 0);

  [[nodiscard]] const StepPrograms& steps() const { return *steps_; }
  /// Of all processes, or of the devices of one process.
  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  /// A training step, or a batch of an evaluation.
  [[nodiscard]] const Program& step() const { return steps_->all().front()->program; }

 private:
  std::unique_ptr<Scheme> scheme_;
  std::unique_ptr<StepPrograms> steps_;
  Mesh mesh_{};
};

/// The memory of one device.
struct DeviceMemory {
  std::int64_t bytes = 0;
  EnumArray<Category, std::int64_t> by_category{};
};

/// By device for mlp_single and mlp_dp; for mlp_ddp only that of the first rank.
std::vector<DeviceMemory> planned_memory(const Workload& workload);
std::vector<DeviceMemory> planned_memory(const WorkloadPrograms& programs);

/// The memory of the rank of mlp_ddp that needs most.
std::int64_t max_rank_bytes(const Workload& workload);

/// What a step moves between the devices of mlp_dp.
Traffic traffic_of(const Workload& workload);

/// Throws Error(kMemory), with a size that fits, if the workload needs more than `free_bytes`: of
/// the machine's memory, shared by all ranks and devices on the CPU, or of its fullest GPU's. A run
/// of PyTorch has no plan and is not checked.
void require_memory(const Workload& workload, std::int64_t free_bytes);

}  // namespace barestep
