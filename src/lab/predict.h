// Predictions for a machine card: scaling over ranks, and from which batch or width ranks pay.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/findings.h"
#include "lab/machine_card.h"
#include "lab/simulator.h"
#include "lab/workload.h"

namespace barestep {

struct PredictedModel {
  std::int64_t dim = 8192;
  std::int64_t depth = 6;
  std::int64_t batch_size = 64;  // all ranks together, or of each
  bool batch_per_rank = false;
  RankScheme scheme = RankScheme::kDdp;
};

/// A step of `ranks` of mlp_ddp; of one rank that of mlp_single.
SimulatedStep predicted_step(const PredictedModel& model, const MachineCard& card, int ranks);

/// A row for each number of ranks, and in words which is fastest, and the least batch and width, by
/// doubling, from which two ranks are faster than one. Throws Error(kConfiguration) where the
/// machine has fewer ranks, or a rank would have no sample.
Findings predict_scaling(const PredictedModel& model, const MachineCard& card,
                         const std::vector<int>& ranks);

}  // namespace barestep
