// Predictions for a machine card: scaling over ranks, the batch or width from which ranks pay off.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/predict/machine_card.h"
#include "lab/predict/simulator.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"

namespace barestep {

/// Of --scheme tensor and pipeline, whose ranks all share one copy of the model.
constexpr std::int64_t kAllRanks = 0;

struct PredictedModel {
  std::int64_t dim = 8192;
  std::int64_t depth = 6;
  Activation activation = Activation::kRelu;
  std::int64_t batch_size = 64;  // all ranks together, or of each
  bool batch_per_rank = false;
  RankScheme scheme = RankScheme::kDdp;
  bool data_parallel = false;  // mlp_dp's devices instead of the scheme's mlp_ddp ranks
  std::int64_t tensor = 1;     // ranks that share every layer; kAllRanks: all that stages leave
  std::int64_t pipeline = 1;   // stages; kAllRanks likewise
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  std::optional<std::int64_t> micro_batches{};
  Precision precision = Precision::kFp32;
  std::int64_t recompute = 1;           // segments
  double delay_ms = 0;                  // before backward, on every rank
  std::optional<SlowRank> slow_rank{};  // additional delay; ignored with one rank
  TrainConfig others{};                 // what the members above do not say
};

/// The model that these options describe, with the batch of all ranks.
PredictedModel predicted_model(const TrainConfig& config);

/// The names of the schemes: those of ranks, "data-parallel", "tensor" and "pipeline".
std::vector<std::string_view> scheme_names();

/// Sets the scheme with this index in scheme_names().
void choose_scheme(PredictedModel& model, std::size_t number);

/// The run of so many ranks that predicted_step() simulates.
Workload workload_of(const PredictedModel& model, const MachineCard& card, int ranks);

/// Throws Error(kConfiguration) if the machine has fewer devices than the largest of `ranks`, or no
/// rate of products for the precision.
void require_machine(const PredictedModel& model, const MachineCard& card,
                     const std::vector<int>& ranks);

/// The same, and for ranks that the scheme or the model does not allow.
void require_prediction(const PredictedModel& model, const MachineCard& card,
                        const std::vector<int>& ranks);

/// Whether so many ranks of the machine can run the model, if one can.
bool can_run(const PredictedModel& model, const MachineCard& card, int ranks);

/// The numbers of ranks to show if none are named: 1, 2, 4 and 8, or 1 and as many as share a copy
/// of the model, doubled up to 8; of these, those that can run it.
std::vector<int> usual_ranks(const PredictedModel& model, const MachineCard& card);

/// A step of `ranks` ranks of mlp_ddp or devices of mlp_dp; with one, a step of mlp_single. Throws
/// Error(kConfiguration) for ranks that do not form the mesh, and as validate() does.
SimulatedStep predicted_step(const PredictedModel& model, const MachineCard& card, int ranks);

/// Samples per second of a number of ranks.
struct PredictedRate {
  int ranks = 1;
  double samples_per_s = 0;
};

/// Which of `rates` is fastest, compared with one rank. Differences within 1 % are reported as a
/// tie. `noun` names a rank.
std::string fastest_sentence(double one_rank, const std::vector<PredictedRate>& rates,
                             std::string_view noun);

/// A row for each number of ranks. In words: which is fastest, and the least batch and width, by
/// doubling, from which two ranks are faster than one, or as many as share a copy of the model.
/// Then the stages of a pipeline, the bandwidth of communication and its cost to concurrent
/// kernels, and the rate of each product by its shape. Throws Error(kConfiguration) for what the
/// machine or the scheme cannot do.
Findings predict_scaling(const PredictedModel& model, const MachineCard& card,
                         const std::vector<int>& ranks);

/// Whether it is a run of a trainer, and the card has rates for its products: int8 has none on any
/// card.
bool can_predict(const Workload& workload, const MachineCard& card);

}  // namespace barestep
