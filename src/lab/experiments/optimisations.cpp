// The lecture's ladder: one optimisation on top of the other.
#include <fmt/format.h>

#include <string_view>

#include "lab/experiment.h"
#include "lab/experiments/all.h"
#include "lab/findings.h"

namespace barestep {
namespace {

struct Rung {
  const char* key;
  const char* words;
};

/// In the order of the lecture.
std::vector<Rung> rungs_of(bool on_gpu) {
  std::vector<Rung> rungs = {
      {"baseline", "nothing"},       {"prefetch", "a worker that loads ahead"},
      {"batch", "a batch of 256"},   {"fusion", "bias and ReLU inside the product"},
      {"graph", "a captured graph"}, {"update", "gradients straight into Adam"}};
  if (on_gpu) rungs.push_back({"precision", "products in tf32"});
  return rungs;
}

std::vector<Case> optimisations_cases(const Setting& setting) {
  std::vector<Case> cases;
  Workload workload = base_workload(setting);
  TrainConfig& config = workload.config;
  read_data_set(config.data, setting.data);
  config.data.workers = 0;
  config.device.fusion = false;
  for (const Rung& rung : rungs_of(setting.on_gpu)) {
    const std::string_view key = rung.key;
    if (key == "prefetch") config.data.workers = 1;
    if (key == "batch") config.data.batch_size = 256;
    if (key == "fusion") config.device.fusion = true;
    if (key == "graph") config.device.graph = true;
    if (key == "update") config.training.update = Update::kFused;
    if (key == "precision") config.device.precision = Precision::kTf32;
    cases.push_back(new_case(setting, rung.key, workload));
  }
  return cases;
}

Findings conclude_optimisations(const Results& results) {
  const std::vector<Rung> rungs = rungs_of(results.setting.on_gpu);
  const Measurement& baseline = results.cases.front();
  FindingTable table{.title = "Each row has what the rows above have",
                     .columns = {"with", "step time", "samples/s", "against the row above",
                                 "against the baseline"}};
  PlotSeries bars{.name = "samples/s"};
  std::vector<std::string> labels, useless;
  std::size_t best = 0;
  double best_gain = 1;
  for (std::size_t i = 0; i < results.cases.size(); ++i) {
    const Measurement& each = results.cases[i];
    const Estimate rate = each.samples_per_s();
    const Estimate all = ratio(rate, baseline.samples_per_s());
    const Estimate before =
        i == 0 ? Estimate{1, 1, 1} : ratio(rate, results.cases[i - 1].samples_per_s());
    table.rows.push_back({rungs[i].words, time_text(each.step_s()), number_text(rate.median),
                          factor_text(before), factor_text(all)});
    bars.points.push_back(plot_point(static_cast<double>(i), rate));
    labels.emplace_back(rungs[i].key);
    if (i > 0 && before.low <= 1) useless.emplace_back(rungs[i].words);
    if (before.low > 1 && before.median > best_gain) {
      best_gain = before.median;
      best = i;
    }
  }
  const Estimate total = ratio(results.cases.back().samples_per_s(), baseline.samples_per_s());
  std::vector<std::string> sentences = {fmt::format(
      "All together train {} as many samples per second as the baseline.", factor_text(total))};
  sentences.push_back(best == 0 ? "No single one of them is of measurable use here."
                                : fmt::format("Most of it comes from {}: {}.", rungs[best].words,
                                              factor_text(best_gain)));
  if (!useless.empty()) {
    sentences.push_back(fmt::format("Of no measurable use here: {}.", list_text(useless)));
  }
  return {.sentences = sentences,
          .tables = {table},
          .plots = {{.title = "Samples per second, one optimisation on top of the other",
                     .y_label = "samples/s",
                     .categories = labels,
                     .series = {bars}}}};
}

}  // namespace

Experiment optimisations_experiment() {
  return {.name = "optimisations",
          .title = "One optimisation on top of the other",
          .question = "What does each of the lecture's optimisations bring?",
          .cases = optimisations_cases,
          .conclude = conclude_optimisations,
          .reads_data = true};
}

}  // namespace barestep
