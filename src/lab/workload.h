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
  int gpus = 1;                          // there are; more devices of mlp_dp take turns on them
  RankScheme scheme = RankScheme::kDdp;  // of mlp_ddp
  std::int64_t dim = 1024;
  std::int64_t depth = 6;
  std::int64_t batch_size = 64;  // all ranks together
  std::int64_t steps = 40;
  bool pytorch = false;             // the practical's script in place of our trainer
  int threads = 0;                  // of each process; 0: as many as it may use
  std::vector<std::string> more{};  // further options, as typed

  friend bool operator==(const Workload&, const Workload&) = default;
};

/// Its program, or "practical.py".
std::string_view program_of(const Workload& workload);

/// The options of the trainer, or of the script, without its name.
std::vector<std::string> arguments_of(const Workload& workload);

/// What a person types: `mpirun -np 2 mlp_ddp --dim 1024 ...`.
std::string command_line_of(const Workload& workload);

}  // namespace barestep
