// What is asked of a machine card: a run, by the options of the trainers, on any number of ranks.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/predict/machine_card.h"
#include "options/options.h"
#include "parallel/schemes/run.h"

namespace barestep {

/// Of --tensor and --pipeline: all ranks that the other one leaves.
constexpr std::int64_t kAllRanks = 0;

/// Options by name, without dashes, as a user gives them; flags are "true".
using GivenOptions = std::map<std::string, std::string>;

/// As they are typed: " --dim 512 --no-overlap"; empty for none.
std::string options_text(const GivenOptions& given);

/// The options of all trainers, each name once, and --batch-per-rank. As in mlp_dp, --batch-size
/// is that of all ranks together, unless --batch-per-rank is given too.
std::span<const Option> options_to_predict();

/// Why no value of the option is simulated; empty if one is, or has no effect on a step.
std::string_view why_never_simulated(const Option& option);

/// The values of --scheme here: those of mlp_ddp, "data-parallel" for mlp_dp's devices, and
/// "tensor" and "pipeline", whose ranks all share one copy of the model.
std::vector<std::string_view> scheme_names();

/// The run that these options describe, on any number of ranks. Throws Error(kUsage) for a name
/// that no trainer has, and for a value that it does not allow.
Run asked_run(const GivenOptions& given);

/// The options from which asked_run() has this run of a trainer, but for its scheme and its ranks.
GivenOptions given_of(const Run& run);

/// A run on one rank, which is mlp_single's, or on `ranks` ranks of mlp_ddp or devices of mlp_dp.
Run run_on(const Run& asked, const MachineCard& card, int ranks);

/// Throws Error(kConfiguration) if the machine has fewer devices than `ranks`, or no rate of
/// products for the precision, or if the run has options whose effect is not simulated.
void require_machine(const Run& asked, const MachineCard& card, int ranks);

/// The same, and what require() throws for one of these numbers of ranks.
void require_prediction(const Run& asked, const MachineCard& card, const std::vector<int>& ranks);

/// Whether so many ranks of the machine can make the run.
bool can_run(const Run& asked, const MachineCard& card, int ranks);

/// The numbers of ranks to show if none are named: 1, 2, 4 and 8, or 1 and as many as share a copy
/// of the model, doubled up to 8; of these, those that can run it.
std::vector<int> usual_ranks(const Run& asked, const MachineCard& card);

/// The least number of several ranks: two, or as many as share a copy of the model.
int least_several(const Run& asked);

/// "rank" or "device".
std::string_view noun_of(const Run& asked);

/// "zero1, 1024 x 6, batch 64 on each rank, --optimizer sgd".
std::string text_of(const Run& asked);

/// Whether the card has rates for products of this precision: none has those of quantized ones.
bool has_rate(const MachineCard& card, Precision precision);

}  // namespace barestep
