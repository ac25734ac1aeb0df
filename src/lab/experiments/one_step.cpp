// One device's step: where its time goes, its first steps, whether it repeats.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lab/experiments/all.h"
#include "lab/findings.h"
#include "lab/plots.h"

namespace barestep {
namespace {

std::vector<Case> profile_cases(const Setting& setting) {
  Case what = new_case(setting, "profiled", base_workload(setting));
  what.record_ops = true;
  return {what};
}

/// Median over the starts of what each sums up to.
template <class Take>
double median_of_ops(const Measurement& each, const Take& takes) {
  std::vector<double> sums;
  for (const Start& start : each.starts()) {
    double sum = 0;
    for (const OpTime& op : start.ops) sum += takes(op) ? op.seconds : 0;
    sums.push_back(sum);
  }
  return median(sums);
}

/// "gemm, backward of layer 1" and its time, the longest first.
std::vector<std::pair<std::string, double>> op_rows(const Measurement& each) {
  std::vector<std::pair<std::string, double>> rows;
  for (const OpTime& op : each.starts().front().ops) {
    const std::string layer = op.layer < 0 ? "" : fmt::format(" of layer {}", op.layer);
    rows.emplace_back(fmt::format("{}, {}{}", op.name, op.phase, layer),
                      median_of_ops(each, [&](const OpTime& other) {
                        return other.name == op.name && other.phase == op.phase &&
                               other.layer == op.layer;
                      }));
  }
  std::ranges::sort(rows, std::ranges::greater{}, &std::pair<std::string, double>::second);
  return rows;
}

/// How near to the machine's roof the ops run that take longest and that are nearest; needs rates.
void add_roofline(const Results& results, Findings& findings) {
  const std::vector<RooflinePoint> points =
      results.card ? roofline_points(results.at("profiled"), *results.card)
                   : std::vector<RooflinePoint>{};
  if (points.empty()) return;
  const RooflinePoint& longest = points.front();
  const bool by_memory =
      longest.flops_per_byte * results.card->memory_bytes_per_s < results.card->flops_per_s;
  findings.sentences.push_back(fmt::format(
      "Of the ops that compute, the longest, {}, is bound by {}: it does {:.1f} flops a byte and "
      "reaches {} of the machine's roof.",
      longest.op, by_memory ? "memory" : "arithmetic", longest.flops_per_byte,
      percent_text(longest.share_of_roof)));
  findings.plots.push_back(roofline_plot(points, *results.card));
}

Findings conclude_profile(const Results& results) {
  const Measurement& step = results.at("profiled");
  const auto phase_s = [&](const char* phase) {
    return median_of_ops(step, [&](const OpTime& op) { return op.phase == phase; });
  };
  const double all = median_of_ops(step, [](const OpTime&) { return true; });
  const double forward = phase_s("forward"), backward = phase_s("backward");
  std::map<int, double> layers;
  for (std::int64_t layer = 0; layer < step.workload().depth(); ++layer) {
    layers[static_cast<int>(layer)] =
        median_of_ops(step, [&](const OpTime& op) { return op.layer == layer; });
  }
  const auto heaviest =
      std::ranges::max_element(layers, {}, [](const auto& layer) { return layer.second; });
  const auto rows = op_rows(step);
  FindingTable table{.title = "The longest ops of a step",
                     .columns = {"op", "time", "of the device's time"}};
  for (std::size_t i = 0; i < std::min<std::size_t>(rows.size(), 10); ++i) {
    table.rows.push_back(
        {rows[i].first, time_text(rows[i].second), percent_text(rows[i].second / all)});
  }
  PlotSeries by_layer{.name = "ops of the layer"};
  std::vector<std::string> labels;
  for (const auto& [layer, seconds] : layers) {
    by_layer.points.push_back(plot_point(layer, 1e3 * seconds));
    labels.push_back(fmt::format("layer {}", layer));
  }
  const double mean = all <= 0 ? 0 : [&] {
    double sum = 0;
    for (const auto& [layer, seconds] : layers) sum += seconds;
    return sum / static_cast<double>(layers.size());
  }();
  const std::string dominant =
      heaviest->second > 1.3 * mean
          ? fmt::format("Layer {} dominates: {} of {} for all layers.", heaviest->first,
                        time_text(heaviest->second),
                        time_text(mean * static_cast<double>(layers.size())))
          : fmt::format("No layer dominates: the longest, layer {}, takes {}, the average {}.",
                        heaviest->first, time_text(heaviest->second), time_text(mean));
  Findings findings{
      .sentences = {fmt::format("The longest op is {}: {} of {} that the device computes in a "
                                "step ({}).",
                                rows.front().first, time_text(rows.front().second), time_text(all),
                                percent_text(rows.front().second / all)),
                    backward >= forward
                        ? fmt::format("Backward takes {:.2f} times as long as forward: {} and "
                                      "{}.",
                                      backward / forward, time_text(backward), time_text(forward))
                        : fmt::format("Forward takes {:.2f} times as long as backward: {} and "
                                      "{}.",
                                      forward / backward, time_text(forward), time_text(backward)),
                    dominant},
      .tables = {table},
      .plots = {{.title = "Time by layer, forward and backward",
                 .y_label = "ms a step",
                 .categories = labels,
                 .series = {by_layer}}}};
  add_roofline(results, findings);
  return findings;
}

std::vector<Case> warmup_cases(const Setting& setting) {
  return {new_case(setting, "from-start", base_workload(setting))};
}

/// Of step `step` of all starts.
double median_of_step(const Measurement& each, std::size_t step, const std::string& phase = "") {
  std::vector<double> all;
  for (const Start& start : each.starts()) {
    const RankSteps& rank = start.ranks.front();
    const auto& values = phase.empty() ? rank.step_s : rank.phase_s.at(phase);
    all.push_back(values.at(step));
  }
  return median(all);
}

Findings conclude_warmup(const Results& results) {
  const Measurement& steps = results.at("from-start");
  const double steady = steps.step_s().median, first = median_of_step(steps, 0);
  PhaseChange most;
  for (const auto& [phase, values] : steps.starts().front().ranks.front().phase_s) {
    const double more = median_of_step(steps, 0, phase) - steps.phase_s(phase);
    if (most.phase.empty() || more > most.seconds) most = {phase, more};
  }
  std::string answer;
  if (first > 1.1 * steady) {
    answer = fmt::format(
        "The first step takes {:.2f} times as long as a steady one: {} instead of "
        "{}. Most of that is {} ({} more): memory is touched, and libraries are "
        "used, for the first time.",
        first / steady, time_text(first), time_text(steps.step_s()), phase_words(most.phase),
        time_text(most.seconds));
  } else {
    answer = fmt::format("The first step is not slower: {}, and {} later.", time_text(first),
                         time_text(steps.step_s()));
  }
  const std::size_t warmup = steps.warmup_steps();
  PlotSeries series{.name = "median of the starts"};
  PlotSeries level{.name = "steady state", .style = SeriesStyle::kDashed};
  FindingTable table{.title = "The first steps", .columns = {"step", "time", "of a steady one"}};
  const std::size_t shown =
      std::min<std::size_t>(20, steps.starts().front().ranks.front().step_s.size());
  for (std::size_t step = 0; step < shown; ++step) {
    const double seconds = median_of_step(steps, step);
    series.points.push_back(plot_point(static_cast<double>(step), 1e3 * seconds));
    level.points.push_back(plot_point(static_cast<double>(step), 1e3 * steady));
    if (step < 8) {
      table.rows.push_back(
          {std::to_string(step), time_text(seconds), percent_text(seconds / steady)});
    }
  }
  return {
      .sentences = {answer, warmup == 0 ? "No change of level was found, so no step is left out."
                                        : fmt::format("The steady state begins at step {} at the "
                                                      "latest; the steps before it are left out.",
                                                      warmup)},
      .tables = {table},
      .plots = {{.title = "The first steps",
                 .x_label = "step",
                 .y_label = "ms",
                 .series = {level, series}}}};
}

std::vector<Case> reproducibility_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const auto& [key, seed] :
       {std::pair{"seed-0", 0U}, std::pair{"seed-0-again", 0U}, std::pair{"seed-1", 1U}}) {
    Workload workload = base_workload(setting);
    workload.config.training.seed = seed;
    Case what = new_case(setting, key, workload);
    what.hash_weights = true;
    cases.push_back(what);
  }
  return cases;
}

/// Losses of all steps, and the weights at the end, of every start of the cases.
std::size_t different_runs(const std::vector<const Measurement*>& cases) {
  std::set<std::pair<std::vector<double>, std::string>> runs;
  for (const Measurement* each : cases) {
    for (const Start& start : each->starts()) {
      runs.emplace(start.ranks.front().loss, start.weights_hash);
    }
  }
  return runs.size();
}

Findings conclude_reproducibility(const Results& results) {
  const Measurement &a = results.at("seed-0"), &again = results.at("seed-0-again");
  const Measurement& other = results.at("seed-1");
  const std::size_t same_seed = different_runs({&a, &again});
  const std::size_t starts = a.starts().size() + again.starts().size();
  const bool other_differs =
      different_runs({&a, &again, &other}) == same_seed + different_runs({&other});
  FindingTable table{.title = "Losses and weights",
                     .columns = {"case", "last loss", "hash of the weights"}};
  for (const Measurement* each : {&a, &again, &other}) {
    for (const Start& start : each->starts()) {
      table.rows.push_back({each->what().key, fmt::format("{}", start.ranks.front().loss.back()),
                            start.weights_hash});
    }
  }
  return {
      .sentences = {same_seed == 1
                        ? fmt::format("The same seed repeats to the bit: {} runs, every loss of {} "
                                      "steps and all weights equal.",
                                      starts, a.starts().front().ranks.front().loss.size())
                        : fmt::format("The same seed does not repeat: {} runs came to {} different "
                                      "results.",
                                      starts, same_seed),
                    other_differs
                        ? "Another seed gives other losses and weights."
                        : "Another seed gives the same results, so the seed is not used."},
      .tables = {table}};
}

}  // namespace

Experiment profile_experiment() {
  return {.name = "profile",
          .title = "Where the time of a step goes",
          .question =
              "Which ops are longest, how does backward compare with forward, and does a "
              "layer dominate?",
          .cases = profile_cases,
          .conclude = conclude_profile};
}

Experiment warmup_experiment() {
  return {.name = "warmup",
          .title = "The first steps",
          .question = "How do the first steps differ from the others, and why?",
          .cases = warmup_cases,
          .conclude = conclude_warmup};
}

Experiment reproducibility_experiment() {
  return {.name = "reproducibility",
          .title = "Reproducibility",
          .question = "Does the same seed repeat to the bit, and does another one differ?",
          .cases = reproducibility_cases,
          .conclude = conclude_reproducibility};
}

}  // namespace barestep
