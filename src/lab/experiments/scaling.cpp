// Strong scaling, where ranks share a batch, and weak scaling, where each has one of its own.
#include <fmt/format.h>

#include <algorithm>

#include "core/units.h"
#include "lab/experiments/all.h"
#include "lab/findings.h"

namespace barestep {
namespace {

/// The course's border between good and bad.
constexpr double kGoodEfficiency = 0.8;

std::vector<Case> strong_scaling_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int ranks : rank_counts(setting)) {
    cases.push_back(new_case(setting, ranks_key(ranks), ddp_workload(setting, ranks)));
  }
  return cases;
}

std::vector<Case> weak_scaling_cases(const Setting& setting) {
  std::vector<Case> cases = strong_scaling_cases(setting);
  for (Case& each : cases) each.workload.config.data.batch_size *= each.workload.ranks;
  return cases;
}

/// Of strong scaling: speed-up by ranks. Of weak scaling: one rank's step by this one's.
Estimate efficiency_of(const Results& results, const Measurement& each, bool is_strong) {
  const Estimate faster = ratio(results.cases.front().step_s(), each.step_s());
  const double ranks = is_strong ? each.workload().ranks : 1;
  return {faster.median / ranks, faster.low / ranks, faster.high / ranks};
}

/// The first case within the cores whose efficiency is bad, or null.
const Measurement* first_drop(const Results& results, bool is_strong) {
  for (const Measurement& each : results.cases) {
    if (each.what().beyond_cores) continue;
    if (efficiency_of(results, each, is_strong).median < kGoodEfficiency) return &each;
  }
  return nullptr;
}

std::string drop_sentence(const Results& results, bool is_strong) {
  const Measurement& one = results.cases.front();
  const Measurement* drop = first_drop(results, is_strong);
  if (drop == nullptr) {
    const auto last =
        std::ranges::find_if(results.cases.rbegin(), results.cases.rend(),
                             [](const Measurement& each) { return !each.what().beyond_cores; });
    return fmt::format("Efficiency stays above {} up to {}, where it is {}.",
                       percent_text(kGoodEfficiency), counted(last->workload().ranks, "rank"),
                       percent_text(efficiency_of(results, *last, is_strong).median));
  }
  const int ranks = drop->workload().ranks;
  // Against the step that would scale perfectly, phase by phase.
  PhaseChange most{.phase = "reduce", .seconds = 0};
  for (const std::string& phase : account_phases()) {
    const double ideal = one.phase_s(phase) / (is_strong ? ranks : 1);
    const double lost = drop->phase_s(phase) - ideal;
    if (lost > most.seconds) most = {phase, lost};
  }
  const double ideal_s = one.step_s().median / (is_strong ? ranks : 1);
  return fmt::format(
      "Efficiency falls below {} at {} ranks ({}): a step takes {}, {} more than the {} of perfect "
      "scaling, and most of that is {} ({}).",
      percent_text(kGoodEfficiency), ranks,
      percent_text(efficiency_of(results, *drop, is_strong).median),
      time_text(drop->step_s().median), time_text(drop->step_s().median - ideal_s),
      time_text(ideal_s), phase_words(most.phase), time_text(most.seconds));
}

std::string best_sentence(const Results& results, bool is_strong) {
  const auto best = std::ranges::max_element(
      results.cases, {}, [](const Measurement& each) { return each.samples_per_s().median; });
  const Measurement& one = results.cases.front();
  const Estimate gain = ratio(best->samples_per_s(), one.samples_per_s());
  if (best->workload().ranks == 1) {
    return fmt::format("One rank trains fastest ({} samples/s): with {} no further rank pays.",
                       number_text(one.samples_per_s().median),
                       is_strong ? "this batch" : "this batch on each rank");
  }
  return fmt::format("{} ranks train fastest: {} samples/s, {} as many as one rank.",
                     best->workload().ranks, number_text(best->samples_per_s().median),
                     factor_text(gain));
}

Findings conclude_scaling(const Results& results, bool is_strong) {
  FindingTable table{
      .title = is_strong ? "The same batch on more ranks" : "The same batch on each rank",
      .columns = {"ranks", "batch", "step time", "speed-up", "efficiency", "exposed communication",
                  ""}};
  PlotSeries measured{.name = "measured"};
  PlotSeries ideal{.name = "ideal", .style = SeriesStyle::kDashed};
  std::vector<std::string> labels;
  for (const Measurement& each : results.cases) {
    const int ranks = each.workload().ranks;
    const Estimate gain = ratio(each.samples_per_s(), results.cases.front().samples_per_s());
    const Estimate efficiency = efficiency_of(results, each, is_strong);
    table.rows.push_back({std::to_string(ranks), std::to_string(each.workload().batch_size()),
                          time_text(each.step_s()), factor_text(gain),
                          percent_text(efficiency.median), time_text(each.phase_s("reduce")),
                          each.what().beyond_cores ? "beyond the cores" : ""});
    measured.points.push_back(plot_point(ranks, gain));
    ideal.points.push_back(plot_point(ranks, ranks));
    labels.push_back(counted(ranks, "rank"));
  }
  return {.sentences = {drop_sentence(results, is_strong), best_sentence(results, is_strong)},
          .tables = {table},
          .plots = {{.title = "Samples per second, as a multiple of one rank's",
                     .x_label = "ranks",
                     .y_label = "speed-up",
                     .log_x = true,
                     .series = {ideal, measured}},
                    account_plot(results.cases, labels)}};
}

}  // namespace

Experiment strong_scaling_experiment() {
  return {.name = "strong-scaling",
          .title = "Strong scaling",
          .question =
              "A batch of 64 on 1, 2, 4 ranks: how much faster is a step, and where and why "
              "does efficiency drop?",
          .cases = strong_scaling_cases,
          .conclude = [](const Results& results) { return conclude_scaling(results, true); },
          .needs_mpi = true};
}

Experiment weak_scaling_experiment() {
  return {.name = "weak-scaling",
          .title = "Weak scaling",
          .question = "A batch of 64 on each rank: how much longer does a step take on more ranks?",
          .cases = weak_scaling_cases,
          .conclude = [](const Results& results) { return conclude_scaling(results, false); },
          .needs_mpi = true};
}

}  // namespace barestep
