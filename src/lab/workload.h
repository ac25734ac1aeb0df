// A run of one of the trainers: what is measured, planned and predicted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config.h"

namespace barestep {

struct Workload {
  TrainerKind trainer = TrainerKind::kSingle;
  int ranks = 1;  // processes of mlp_ddp, devices of mlp_dp
  bool on_gpu = false;
  int gpus = 1;          // there are; more devices of mlp_dp take turns on them
  bool pytorch = false;  // the practical's script in place of our trainer
  TrainConfig config{};  // what the trainer is told; the batch is that of all ranks

  [[nodiscard]] std::int64_t dim() const { return config.model.dim.value(); }
  [[nodiscard]] std::int64_t depth() const { return config.model.depth.value(); }
  [[nodiscard]] std::int64_t batch_size() const { return config.data.batch_size; }
  [[nodiscard]] std::int64_t steps() const { return config.training.steps.value(); }

  friend bool operator==(const Workload&, const Workload&) = default;
};

/// Its program, or "practical.py".
std::string_view program_of(const Workload& workload);

/// The options of the trainer, or of the script, without its name.
std::vector<std::string> arguments_of(const Workload& workload);

/// What a person types: `mpirun -np 2 mlp_ddp --dim 1024 ...`.
std::string command_line_of(const Workload& workload);

}  // namespace barestep
