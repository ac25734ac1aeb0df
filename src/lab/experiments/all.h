// The experiments, one file each, and what they share.
#pragma once

#include <string>
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
Experiment pytorch_experiment();

/// "ranks-2" of mlp_ddp on 1, 2, 4, ... ranks: as many as there are cores or GPUs, at least 4 on
/// the CPU.
std::vector<int> rank_counts(const Setting& setting);
std::string ranks_key(int ranks);

/// Two estimates whose intervals do not overlap.
bool differ(const Estimate& a, const Estimate& b);

/// The phases of a step as bars, one for each case; `labels` are the cases'.
Plot account_plot(const std::vector<Measurement>& cases, const std::vector<std::string>& labels);

/// What people call a phase: "exposed communication".
std::string phase_words(const std::string& phase);

/// The phases of the account, in the order of a step.
const std::vector<std::string>& account_phases();

/// The phase whose time differs most between two cases, from `a` to `b`; milliseconds may shrink.
struct PhaseChange {
  std::string phase;
  double seconds = 0;
};
PhaseChange largest_change(const Measurement& a, const Measurement& b);

}  // namespace barestep
