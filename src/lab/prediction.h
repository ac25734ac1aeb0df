// Predictions for a machine card: scaling over ranks, from which batch or width ranks pay, and how
// far they are from what was measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lab/experiment.h"
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

/// (predicted - measured) / measured, of one case of results that have predictions.
double prediction_error(const Results& results, std::size_t number);

/// Of all cases within the cores.
struct PredictionSummary {
  int runs = 0;
  int beyond_cores = 0;     // further ones, not counted
  double median_error = 0;  // of the errors' sizes
  double within_tenth = 0;  // share of the runs whose error is at most a tenth, which is the goal
};

/// Nothing where no case was predicted.
std::optional<PredictionSummary> prediction_summary(const std::vector<const Results*>& all);

/// The summary in sentences, a row for every case with what the error is made of, and the plot of
/// predictions against measurements. Empty where no case was predicted.
Findings prediction_findings(const std::vector<const Results*>& all);

}  // namespace barestep
