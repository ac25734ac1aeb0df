// Predictions for a machine card: scaling over ranks, from which batch or width ranks pay, and how
// far they are from what was measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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
  bool data_parallel = false;  // devices of mlp_dp, in place of the scheme's ranks of mlp_ddp
  Precision precision = Precision::kFp32;
  std::int64_t recompute = 1;           // segments
  double delay_ms = 0;                  // before backward, of every rank
  std::optional<SlowRank> slow_rank{};  // further; a rank alone has none
};

/// The schemes by their names: those of ranks, and "data-parallel".
std::vector<std::string_view> scheme_names();

/// Sets the scheme of this number in scheme_names().
void choose_scheme(PredictedModel& model, std::size_t number);

/// A step of `ranks` of mlp_ddp or devices of mlp_dp; of one that of mlp_single.
SimulatedStep predicted_step(const PredictedModel& model, const MachineCard& card, int ranks);

/// Samples a second of a number of ranks.
struct PredictedRate {
  int ranks = 1;
  double samples_per_s = 0;
};

/// Which of `rates` is fastest, against one rank's. What is within 1 % is a tie, and said to be.
/// `noun` names a rank.
std::string fastest_sentence(double one_rank, const std::vector<PredictedRate>& rates,
                             std::string_view noun);

/// A row for each number of ranks; which is fastest, and the least batch and width, by doubling,
/// from which two ranks are faster than one, in words; what communication reaches and costs the
/// kernels beside it; and the rate of each product by its shape. Throws Error(kConfiguration) for
/// what the machine or the scheme cannot do.
Findings predict_scaling(const PredictedModel& model, const MachineCard& card,
                         const std::vector<int>& ranks);

/// (predicted - measured) / measured, of one case of results that have predictions.
double prediction_error(const Results& results, std::size_t number);

/// Of all distinct predictions within the cores. Cases that run the same command line, in several
/// experiments say, are one prediction, against the median of what they measured.
struct PredictionSummary {
  int runs = 0;             // distinct predictions
  int beyond_cores = 0;     // further ones, not counted
  double median_error = 0;  // of the errors' sizes
  double within_tenth = 0;  // share of them whose error is at most a tenth, which is the goal
};

/// Nothing where no case was predicted.
std::optional<PredictionSummary> prediction_summary(const std::vector<const Results*>& all);

/// The summary in sentences, a row for every case with what the error is made of, and the plot of
/// predictions against measurements. Empty where no case was predicted.
Findings prediction_findings(const std::vector<const Results*>& all);

}  // namespace barestep
