// The experiments, one file each, and what they share.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/experiment.h"

namespace barestep {

Experiment batch_sweep_experiment();
Experiment io_delay_experiment();
Experiment data_loading_experiment();
Experiment amdahl_experiment();
Experiment profile_experiment();
Experiment monitor_experiment();
Experiment timing_experiment();
Experiment sync_experiment();
Experiment warmup_experiment();
Experiment reproducibility_experiment();
Experiment data_parallel_experiment();
Experiment splits_experiment();
Experiment gpu0_bottleneck_experiment();
Experiment strong_scaling_experiment();
Experiment weak_scaling_experiment();
Experiment comm_vs_compute_experiment();
Experiment dp_vs_ddp_experiment();
Experiment delay_experiment();
Experiment batch_scaling_experiment();
Experiment imbalance_experiment();
Experiment bucket_size_experiment();
Experiment schemes_experiment();
Experiment optimisations_experiment();
Experiment activations_experiment();
Experiment accumulation_experiment();
Experiment checkpoint_experiment();
Experiment precision_experiment();
Experiment memory_experiment();
Experiment int8_experiment();
Experiment recompute_experiment();
Experiment pytorch_experiment();

/// "ranks-2" of mlp_ddp on 1, 2, 4, ... ranks: as many as there are cores or GPUs, at least 4 on
/// the CPU; or those that were asked for.
std::vector<int> rank_counts(const Setting& setting);
std::string ranks_key(int ranks);

/// How many ranks or devices are compared with one where an experiment varies something else: 2, or
/// the most that were asked for.
int compared_with_one(const Setting& setting);

/// "two ranks", "4 ranks"; at the beginning of a sentence "Two ranks".
std::string several_words(int count, std::string_view noun, bool is_first = false);

/// Keys of the cases that answers may use: those within the cores, or all where only the first is,
/// since then nothing else can be answered.
std::vector<std::string> keys_within_cores(const Results& results);

/// The phases of the account, in the order of a step.
std::span<const std::string_view> account_phases();

/// The phases that compute: forward, loss, backward and optimizer.
std::span<const std::string_view> computing_phases();

/// What people call a phase: "exposed communication".
std::string phase_words(std::string_view phase);

/// The phases of a step as bars, one for each case; `labels` are the cases'.
Plot account_plot(const std::vector<Measurement>& cases, const std::vector<std::string>& labels);

/// Of a phase in the step of a rank, by starts.
Estimate share_of(const Measurement& each, std::string_view phase, int rank = 0);

/// The phase that takes most of a step.
LargestPart largest_phase(const Measurement& each);

/// Where throughput saturates, of the same case with ever larger batches, each twice the one
/// before: from where on no doubling surely brings a tenth more. `whose` is empty or " of two
/// ranks".
std::string saturation_sentence(const std::vector<const Measurement*>& by_batch,
                                std::string_view whose = "");

/// "Fastest: A.", or all that are indistinguishable. `names` are those of `fastest`'s places.
std::string fastest_sentence(const Fastest& fastest, const std::vector<std::string>& names);

/// The step times of cases by their keys, for fastest_of().
std::vector<Series> steps_of(const Results& results, std::span<const std::string> keys);

/// Appends several comparisons to those already there.
void keep(Findings& findings, std::span<const Comparison> comparisons);

}  // namespace barestep
