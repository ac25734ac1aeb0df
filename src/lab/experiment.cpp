#include "lab/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/nearest.h"
#include "lab/experiments/all.h"

namespace barestep {

Setting new_setting(bool quick, bool on_gpu, int units) {
  Setting setting{.quick = quick, .on_gpu = on_gpu, .units = units};
  if (on_gpu) setting.dim = 8192;
  if (quick) {
    setting.dim = on_gpu ? 1024 : 256;
    setting.depth = 2;
    setting.steps = 16;
    setting.starts = 2;
    setting.data_rows = 1024;
  }
  return setting;
}

Workload base_workload(const Setting& setting) {
  Workload workload{.on_gpu = setting.on_gpu};
  workload.config.model.dim = setting.dim;
  workload.config.model.depth = setting.depth;
  workload.config.training.steps = setting.steps;
  workload.config.device.device = setting.on_gpu ? "cuda" : "cpu";
  return workload;
}

Workload ddp_workload(const Setting& setting, int ranks) {
  Workload workload = base_workload(setting);
  workload.trainer = TrainerKind::kDdp;
  workload.ranks = ranks;
  if (!setting.on_gpu) workload.config.device.threads = 1;
  return workload;
}

Workload dp_workload(const Setting& setting, int devices) {
  Workload workload = ddp_workload(setting, devices);
  workload.trainer = TrainerKind::kDataParallel;
  workload.gpus = setting.units;
  DeviceConfig& device = workload.config.device;
  device.device = "auto";
  for (int i = 0; i < devices; ++i) {
    device.devices.push_back(setting.on_gpu ? fmt::format("cuda:{}", i % setting.units) : "cpu");
  }
  return workload;
}

Case new_case(const Setting& setting, std::string key, Workload workload) {
  Case what{.key = std::move(key), .workload = std::move(workload)};
  what.beyond_cores = what.workload.ranks > setting.units;
  return what;
}

const Measurement& Results::at(std::string_view key) const {
  const auto found =
      std::ranges::find_if(cases, [&](const Measurement& each) { return each.what().key == key; });
  BARESTEP_REQUIRE(found != cases.end(), "an experiment asks for a case that it has not");
  return *found;
}

std::span<const Experiment> experiments() {
  static const std::vector<Experiment> all = {
      batch_sweep_experiment(),     io_delay_experiment(),       data_loading_experiment(),
      amdahl_experiment(),          profile_experiment(),        monitor_experiment(),
      timing_experiment(),          sync_experiment(),           warmup_experiment(),
      reproducibility_experiment(), data_parallel_experiment(),  splits_experiment(),
      gpu0_bottleneck_experiment(), strong_scaling_experiment(), weak_scaling_experiment(),
      comm_vs_compute_experiment(), dp_vs_ddp_experiment(),      delay_experiment(),
      batch_scaling_experiment(),   imbalance_experiment(),      bucket_size_experiment(),
      schemes_experiment(),         optimisations_experiment(),  pytorch_experiment()};
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
                          .why = "there is none of this name",
                          .remedy = (near.empty() ? "" : "did you mean '" + near + "'? ") +
                                    "mlp_lab list shows all"});
}

}  // namespace barestep
