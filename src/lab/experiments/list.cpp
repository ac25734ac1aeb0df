#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "lab/study/experiment.h"

namespace barestep {

// Each is defined in a file of its subject.
Experiment amdahl_experiment(), attention_experiment(), batch_scaling_experiment(),
    batch_sweep_experiment(), bit_flips_experiment(), comm_vs_compute_experiment(),
    data_parallel_experiment(), ddp_amp_experiment(), ddp_ladder_experiment(), delay_experiment(),
    dp_vs_ddp_experiment(), hybrid_experiment(), imbalance_experiment(), io_delay_experiment(),
    local_sgd_experiment(), matmul_experiment(), memory_experiment(), model_parallel_experiment(),
    monitor_experiment(), network_experiment(), no_sync_experiment(), pipeline_experiment(),
    precision_experiment(), profile_experiment(), pytorch_experiment(),
    reproducibility_experiment(), rounding_experiment(), sharding_experiment(),
    strong_scaling_experiment(), two_splits_experiment(), warmup_experiment();

std::span<const Experiment> experiments() {
  static const std::vector<Experiment> all = {
      batch_sweep_experiment(),     io_delay_experiment(),       amdahl_experiment(),
      profile_experiment(),         monitor_experiment(),        warmup_experiment(),
      reproducibility_experiment(), data_parallel_experiment(),  two_splits_experiment(),
      model_parallel_experiment(),  strong_scaling_experiment(), comm_vs_compute_experiment(),
      dp_vs_ddp_experiment(),       delay_experiment(),          batch_scaling_experiment(),
      imbalance_experiment(),       ddp_ladder_experiment(),     no_sync_experiment(),
      sharding_experiment(),        local_sgd_experiment(),      network_experiment(),
      pipeline_experiment(),        hybrid_experiment(),         memory_experiment(),
      precision_experiment(),       rounding_experiment(),       ddp_amp_experiment(),
      matmul_experiment(),          attention_experiment(),      bit_flips_experiment(),
      pytorch_experiment()};
  return all;
}

const Experiment& experiment_of(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Experiment& experiment : experiments()) {
    if (name == experiment.name) return experiment;
    names.emplace_back(experiment.name);
  }
  const std::string near(nearest(name, names));
  fail(ExitCode::kUsage,
       {"experiment", std::string(name), "no experiment has this name",
        (near.empty() ? "" : "did you mean '" + near + "'? ") + "mlp_lab list shows all"});
}

}  // namespace barestep
