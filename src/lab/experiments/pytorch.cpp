// The scripts of the course's practicals (docs/sheets.md) under PyTorch, alternately with our
// programs on the same device.
#include <fmt/format.h>

#include <algorithm>

#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

struct Pair {
  const char* name;
  std::string ours, theirs;  // keys
};

/// nn.DataParallel only supports GPUs.
std::vector<Pair> pairs_of(const Setting& setting) {
  std::vector<Pair> pairs = {{"one device", "single-ours", "single-pytorch"}};
  if (setting.on_gpu && setting.units > 1) {
    pairs.push_back({"DataParallel on two devices", "data-parallel-ours", "data-parallel-pytorch"});
  }
  if (!setting.on_gpu || setting.units > 1) {
    pairs.push_back({"DDP on two ranks", "ddp-ours", "ddp-pytorch"});
  }
  return pairs;
}

std::vector<Case> pytorch_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const Pair& pair : pairs_of(setting)) {
    Workload workload = base_workload(setting);
    if (pair.ours == "data-parallel-ours") workload = dp_workload(setting, 2);
    if (pair.ours == "ddp-ours") workload = ddp_workload(setting, 2);
    workload.config.training.recompute = 1;  // the scripts keep all activations
    // The same number of threads for both.
    std::optional<int>& threads = workload.config.device.threads;
    if (!setting.on_gpu && !threads) threads = setting.units;
    cases.push_back(new_case(setting, pair.ours, workload));
    workload.pytorch = true;
    cases.push_back(new_case(setting, pair.theirs, workload));
  }
  return cases;
}

/// Whether both train the same model. Training magnifies the last bits of a sum from step to step:
/// a ReLU that flips shows in all later losses, and at 1024 x 2 one does before the fifth. So only
/// the first steps tell a wrong model from a different order of additions: their losses follow from
/// the initial weights, one update, and a second one, which has the moments of two gradients.
std::string same_model_text(const Results& results, const std::vector<Pair>& pairs) {
  constexpr std::size_t kFirstSteps = 3;
  constexpr double kSameLosses = 1e-5;  // PyTorch's own sums differ by this much between libraries
  const auto max_difference = [&](std::size_t steps) {
    double max = 0;
    for (const Pair& pair : pairs) {
      max = std::max(max, loss_difference(results.at(pair.ours), results.at(pair.theirs), steps));
    }
    return max;
  };
  if (max_difference(kFirstSteps) >= kSameLosses) {
    return "Their losses differ: they do not train the same model.";
  }
  const double later = max_difference(kAllSteps);
  return later < kSameLosses
             ? "Both train the same model: their losses agree step by step."
             : fmt::format(
                   "Both train the same model: the losses of the first {} steps agree. "
                   "Rounding then grows from step to step, to {:.1e} of a loss.",
                   kFirstSteps, later);
}

Findings pytorch_findings(const Results& results) {
  const std::vector<Pair> pairs = pairs_of(results.setting);
  FindingTable table{.title = "The course's scripts under PyTorch, and the same steps here",
                     .columns = {"", "barestep", "PyTorch", "times as fast", "losses differ by"}};
  std::vector<Compared> compared;
  std::vector<std::string> keys;
  for (const Pair& pair : pairs) {
    const Measurement &mine = results.at(pair.ours), &theirs = results.at(pair.theirs);
    compared.push_back(
        {pair.theirs, pair.ours, fmt::format("on {} with barestep", pair.name), "with PyTorch"});
    table.rows.push_back({pair.name, time_text(mine.mean_s()), time_text(theirs.mean_s()),
                          factor_text(results.compare(pair.theirs, pair.ours).speed()),
                          share_text(loss_difference(mine, theirs))});
    keys.insert(keys.end(), {pair.ours, pair.theirs});
  }
  FindingsOf all(results);
  all.compare(compared, {.within_cores = true})
      .untimed("same-model", same_model_text(results, pairs));
  if (!results.setting.on_gpu) {
    all.untimed("data-parallel",
                "nn.DataParallel runs on GPUs only, so there is nothing to compare on the CPU.");
  }
  const auto place = [&](const Measurement& measured) {
    return static_cast<double>(std::ranges::find(keys, measured.what().key) - keys.begin());
  };
  return all
      .untimed("library", fmt::format("Compared with {}.",
                                      results.at(pairs.front().theirs).starts().front().library))
      .table(std::move(table))
      .plot({.title = "Samples per second, barestep and PyTorch",
             .y_label = "samples/s",
             .categories = keys,
             .series = {points_of("samples/s", results, keys, place, samples_per_s_of)}});
}

}  // namespace

Experiment pytorch_experiment() {
  return {"pytorch",
          "Comparison with PyTorch",
          "How fast are the PyTorch scripts of a university course on parallelism in deep "
          "learning, on the same device?",
          pytorch_cases,
          pytorch_findings,
          "same-model data-parallel library table plot"};
}

}  // namespace barestep
