// The optimizations that a lecture of the course (docs/lab.md) lists, added one by one.
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <string>
#include <string_view>

#include "lab/experiments/all.h"
#include "lab/report/findings.h"
#include "lab/study/experiment.h"

namespace barestep {
namespace {

struct Rung {
  const char* key;
  std::string words;
};

/// 256 instead of the usual 64.
std::int64_t larger_batch(const Setting& setting) {
  return 4 * setting.batch_size;
}

/// The rungs, in the order of the lecture.
std::vector<Rung> rungs_of(const Setting& setting) {
  std::vector<Rung> rungs = {{"baseline", "nothing"},
                             {"prefetch", "a worker that loads ahead"},
                             {"batch", fmt::format("a batch of {}", larger_batch(setting))},
                             {"fusion", "bias and ReLU inside the product"},
                             {"graph", "a captured graph"},
                             {"update", "gradients straight into Adam"}};
  if (setting.on_gpu) {
    rungs.push_back({"tf32", "products in tf32"});
    // The fused update on a GPU supports only fp32.
    rungs.push_back({"bf16", "bf16 instead, gradients stored again"});
  } else {
    rungs.push_back({"bf16", "16-bit numbers (bf16)"});
  }
  return rungs;
}

std::vector<Case> optimizations_cases(const Setting& setting) {
  std::vector<Case> cases;
  Workload workload = base_workload(setting);
  TrainConfig& config = workload.config;
  read_data_set(config.data, setting.data);
  config.data.workers = 0;
  config.device.fusion = false;
  for (const Rung& rung : rungs_of(setting)) {
    const std::string_view key = rung.key;
    if (key == "prefetch") config.data.workers = 1;
    if (key == "batch") config.data.batch_size = larger_batch(setting);
    if (key == "fusion") config.device.fusion = true;
    if (key == "graph") config.device.graph = true;
    if (key == "update") config.training.update = Update::kFused;
    if (key == "tf32") config.device.precision = Precision::kTf32;
    if (key == "bf16") {
      config.device.precision = Precision::kBf16;
      if (setting.on_gpu) config.training.update = Update::kSeparate;
    }
    cases.push_back(new_case(setting, rung.key, workload));
  }
  return cases;
}

/// The rung with the largest part of the total gain, in logarithms, so that the shares add up to
/// one.
std::string contribution_sentence(const Results& results, const std::vector<Rung>& rungs,
                                  const Comparison& whole) {
  const auto log_gain = [&](std::size_t from, std::size_t to) {
    return by_round(results.cases[from].sample_s_by_start(), results.cases[to].sample_s_by_start(),
                    [](double before, double after) { return std::log(before / after); });
  };
  const std::vector<double> total = log_gain(0, results.cases.size() - 1);
  std::vector<PartSeries> parts;
  for (std::size_t i = 1; i < results.cases.size(); ++i) {
    parts.push_back({rungs[i].words, log_gain(i - 1, i)});
  }
  const LargestPart largest = largest_of(parts, total);
  const std::string share = percent_text(largest.share);
  if (whole.word == Word::kTooFewStarts) {
    return fmt::format("Which gains most: {}.", too_few_text(whole.compared));
  }
  if (!whole.is_faster()) return "Together they are not measurably faster, so none has a share.";
  if (!largest.is_alone()) {
    return fmt::format(
        "Which gains most is unclear: {} ({} of the logarithm of the gain for the first).",
        list_text(largest.names), share);
  }
  return fmt::format("{} is {}: {} of its logarithm.",
                     largest.is_most() ? "Most of the gain" : "The largest part of the gain",
                     largest.names.front(), share);
}

Findings conclude_optimizations(const Results& results) {
  const std::vector<Rung> rungs = rungs_of(results.setting);
  const auto key = [&](std::size_t i) -> const std::string& { return results.cases[i].what().key; };
  // Times per sample, since the batch size changes between rungs.
  std::vector<Comparison> steps;
  for (std::size_t i = 1; i < results.cases.size(); ++i) {
    steps.push_back(compare(results.samples_of(key(i - 1)), results.samples_of(key(i)),
                            results.setting.margin));
  }
  adjust_together(steps);
  const Comparison whole =
      compare(results.samples_of(key(0)), results.samples_of(key(results.cases.size() - 1)),
              results.setting.margin);
  FindingTable table{.title = "Each row adds to the rows above",
                     .columns = {"with", "mean step", "samples/s", "speed against the row above",
                                 "speed against the baseline"}};
  PlotSeries bars{.name = "samples/s"};
  std::vector<std::string> labels, useful;
  for (std::size_t i = 0; i < results.cases.size(); ++i) {
    const Measurement& each = results.cases[i];
    const Comparison all = compare(results.samples_of(key(0)), results.samples_of(key(i)));
    const std::string before = i == 0 ? "" : factor_text(steps[i - 1].speed());
    table.rows.push_back({rungs[i].words, time_text(each.mean_s()),
                          number_text(each.samples_per_s().median), before,
                          i == 0 ? "" : factor_text(all.speed())});
    bars.points.push_back(plot_point(static_cast<double>(i), each.samples_per_s()));
    labels.emplace_back(rungs[i].key);
    if (i > 0 && steps[i - 1].is_faster()) {
      useful.push_back(fmt::format("{} with {}", rungs[i].words, before));
    }
  }
  std::string alone = "None of them alone is measurably faster than the row above.";
  if (!useful.empty()) {
    alone = fmt::format("Measurably faster than the row above: {}.", list_text(useful));
  } else if (const std::string too_few = too_few_of(steps); !too_few.empty()) {
    alone = fmt::format("Whether one of them alone is faster than the row above: {}.", too_few);
  }
  Findings findings{.sentences = {sentence_of(whole, "with all of them", "with none", "sample"),
                                  contribution_sentence(results, rungs, whole), alone},
                    .comparisons = steps,
                    .tables = {table},
                    .plots = {{.title = "Samples per second, optimizations added one by one",
                               .y_label = "samples/s",
                               .categories = labels,
                               .series = {bars}}}};
  findings.comparisons.push_back(whole);
  return findings;
}

}  // namespace

Experiment optimizations_experiment() {
  return {.name = "optimizations",
          .title = "Optimizations, added one by one",
          .question = "What does each optimization gain?",
          .cases = optimizations_cases,
          .conclude = conclude_optimizations,
          .reads_data = true};
}

}  // namespace barestep
