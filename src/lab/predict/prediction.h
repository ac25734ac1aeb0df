// Predictions for a machine card: scaling over ranks, the batch or width from which ranks pay off.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/predict/asked_run.h"
#include "lab/predict/machine_card.h"
#include "lab/predict/simulator.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"

namespace barestep {

/// A step of `ranks` ranks of mlp_ddp or devices of mlp_dp; with one, a step of mlp_single. Throws
/// what require() throws.
SimulatedStep predicted_step(const Run& asked, const MachineCard& card, int ranks);

/// Samples per second of a number of ranks.
struct PredictedRate {
  int ranks = 1;
  double samples_per_s = 0;
  double step_s = 0;
};

/// What keeps `run` from the speed of as many of `one` as it has ranks: "exposed communication
/// takes 57 % of the step", the part that exceeds most what it would take if it were shared evenly.
/// Empty if none does by more than 1 % of the step.
std::string cost_of_sharing(const Run& one, const StepAccount& one_step, const Run& run,
                            const SimulatedStep& step);

/// Which of `rates` is fastest, compared with one rank; 0 if the model does not fit on one. If none
/// is faster, how fast each is. Differences within 1 % are reported as a tie. `noun` names a rank.
std::string fastest_text(double one_rank, const std::vector<PredictedRate>& rates,
                         std::string_view noun);

/// A row for each number of ranks. In words: which is fastest, what costs the most where none is,
/// and the least batch and width, by doubling, from which two ranks are faster than one, or as many
/// as share a copy of the model. Then the stages of a pipeline, the bandwidth of communication and
/// its cost to concurrent kernels, and last, in the table kProductsTable, the rate of each product
/// by its shape. Throws what require_prediction() throws.
Findings predict_scaling(const Run& asked, const MachineCard& card, const std::vector<int>& ranks);

constexpr const char* kProductsTable = "products-table";

/// Why a run is not simulated: it is none of a trainer, or the card has no rates for its products
/// (none has those of quantized ones). Empty if it is.
std::string why_no_prediction(const Workload& workload, const MachineCard& card);

/// Devices' memory by category, without categories that none of them has.
using NamedMemory = std::pair<std::string, DeviceMemory>;
Plot memory_plot(std::string title, const std::vector<NamedMemory>& devices);

/// Why its plan does not fit in the memory that the card states for a device, or on the CPU for
/// all; empty if it does, or the card states none.
std::string why_too_large(const Run& run, const MachineCard& card);

}  // namespace barestep
