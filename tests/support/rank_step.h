// A small data-parallel training run, one rank of it, over any communicator: what tests of ranks
// compare.
#pragma once

#include <vector>

#include "core/communicator.h"
#include "core/program.h"
#include "parallel/ddp.h"
#include "train/mlp.h"
#include "train/optimizer.h"

namespace barestep {

/// The model of all ranks.
const MlpSpec& rank_model();

/// One rank's step. Every rank has the whole batch's x and y and works on its own rows.
struct RankStep {
  RankStep(int rank, int ranks, const DdpOptions& options = {},
           const OptimizerSpec& optimizer = {});

  Buffers buffers;
  Program program;
  Tensor x_host, y_host, scalars, parameters, loss_host;
  std::vector<Tensor> state;  // of the optimizer, and gradients: zero at the start
};

struct Trained {
  std::vector<float> parameters;
  std::vector<float> losses;  // global ones

  friend bool operator==(const Trained&, const Trained&) = default;
};

/// Some steps from fixed weights on fixed data; the same on one rank and on many, but for
/// rounding.
Trained train_rank(Communicator& communicator, const DdpOptions& options = {},
                   const OptimizerSpec& optimizer = {});

/// L2 norm of the difference over that of b.
double relative_distance(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace barestep
