#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "lab/experiments/all.h"

namespace barestep {

std::span<const Experiment> experiments() {
  static const std::vector<Experiment> all = {
      batch_sweep_experiment(),    io_delay_experiment(),
      data_loading_experiment(),   amdahl_experiment(),
      profile_experiment(),        monitor_experiment(),
      timing_experiment(),         sync_experiment(),
      warmup_experiment(),         reproducibility_experiment(),
      data_parallel_experiment(),  splits_experiment(),
      two_splits_experiment(),     gpu0_bottleneck_experiment(),
      model_parallel_experiment(), strong_scaling_experiment(),
      weak_scaling_experiment(),   comm_vs_compute_experiment(),
      dp_vs_ddp_experiment(),      delay_experiment(),
      batch_scaling_experiment(),  imbalance_experiment(),
      bucket_size_experiment(),    ddp_ladder_experiment(),
      bucket_model_experiment(),   all_reduce_experiment(),
      no_sync_experiment(),        schemes_experiment(),
      sharding_experiment(),       server_experiment(),
      staleness_experiment(),      local_sgd_experiment(),
      tensor_experiment(),         pipeline_experiment(),
      mesh_experiment(),           limits_experiment(),
      hybrid_experiment(),         optimizations_experiment(),
      activations_experiment(),    accumulation_experiment(),
      checkpoint_experiment(),     precision_experiment(),
      rounding_experiment(),       ddp_amp_experiment(),
      int8_experiment(),           recompute_experiment(),
      memory_experiment(),         liveness_experiment(),
      affinity_experiment(),       matmul_experiment(),
      attention_experiment(),      same_bits_experiment(),
      pytorch_experiment()};
  return all;
}

const Experiment& experiment_of(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Experiment& each : experiments()) {
    if (name == each.name) return each;
    names.emplace_back(each.name);
  }
  const std::string near(nearest(name, names));
  fail(ExitCode::kUsage, {.what = "experiment",
                          .value = std::string(name),
                          .why = "no experiment has this name",
                          .remedy = (near.empty() ? "" : "did you mean '" + near + "'? ") +
                                    "mlp_lab list shows all"});
}

}  // namespace barestep
