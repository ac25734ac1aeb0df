// Strong scaling: ranks share one batch.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/units.h"
#include "lab/experiments/figures.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

/// Above this efficiency the course (docs/lab.md) calls scaling good.
constexpr double kGoodEfficiency = 0.8;

std::vector<Case> scaling_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int ranks : rank_counts(setting)) {
    cases.push_back(new_case(setting, ranks_key(ranks), ddp_workload(setting, ranks)));
  }
  return cases;
}

/// Samples per second of a case, as a multiple of one rank's.
Estimate gain_of(const Results& results, const Measurement& each) {
  return compare(results.samples_of(results.cases.front().what().key),
                 results.samples_of(each.what().key))
      .speed();
}

/// The gain divided by the ranks.
Estimate efficiency_of(const Results& results, const Measurement& each) {
  const Estimate gain = gain_of(results, each);
  const double ranks = each.workload().ranks;
  return {gain.median / ranks, gain.low / ranks, gain.high / ranks};
}

/// The phase with the largest part of the time lost against perfect scaling.
LargestPart loss_of(const Measurement& one, const Measurement& each) {
  const double ranks = each.workload().ranks;
  const auto lost = [&](const std::vector<double>& ideal, const std::vector<double>& real) {
    return by_round(ideal, real, [&](double a, double b) { return b - a / ranks; });
  };
  std::vector<PartSeries> parts;
  for (const std::string_view phase : account_phases()) {
    parts.push_back(
        {phase_words(phase), lost(one.phase_s_by_start(phase), each.phase_s_by_start(phase))});
  }
  return largest_of(parts, lost(one.mean_s_by_start(), each.mean_s_by_start()));
}

std::string loss_text(const LargestPart& loss) {
  const std::string share = percent_text(loss.share);
  if (loss.is_alone() && side_of(loss.share, 1) == Side::kAbove) {
    return fmt::format(
        "{} alone is longer than what is lost, {} of it, since other parts of a step "
        "become shorter",
        loss.names.front(), share);
  }
  if (loss.is_alone()) {
    return fmt::format("{} is {}, {}",
                       loss.is_most() ? "most of what is lost" : "the largest part of what is lost",
                       loss.names.front(), share);
  }
  return fmt::format("the main cause of the loss is unclear, perhaps {} with {}",
                     loss.names.front(), share);
}

std::string efficiency_sentence(const Results& results, const std::vector<std::string>& keys) {
  const Measurement& one = results.cases.front();
  const std::string border = chosen_percent(kGoodEfficiency);
  const Measurement* open = nullptr;
  for (const std::string& key : keys) {
    const Measurement& each = results.at(key);
    const Estimate efficiency = efficiency_of(results, each);
    const Side side = side_of(efficiency, kGoodEfficiency);
    if (side == Side::kOpen && open == nullptr) open = &each;
    if (side != Side::kBelow) continue;
    return fmt::format(
        "Efficiency falls below {} at {} ranks{}: it is {} there, and {}.", border,
        each.workload().ranks,
        open == nullptr ? "" : fmt::format(", or before, at {}", open->workload().ranks),
        percent_text(efficiency), loss_text(loss_of(one, each)));
  }
  const Measurement& last = results.at(keys.back());
  const std::string end = fmt::format("at {} it is {}", counted(last.workload().ranks, "rank"),
                                      percent_text(efficiency_of(results, last)));
  return open == nullptr
             ? fmt::format("Efficiency stays above {}: {}.", border, end)
             : fmt::format("Whether efficiency falls below {} is unclear: {}.", border, end);
}

std::string fastest_ranks(const Results& results, const std::vector<std::string>& keys,
                          Findings& findings) {
  std::vector<Series> series;
  std::vector<std::string> names;
  for (const std::string& key : keys) {
    series.push_back(results.samples_of(key));
    names.push_back(counted(results.at(key).workload().ranks, "rank"));
  }
  const Fastest fastest = fastest_of(series, results.setting.margin);
  keep(findings, fastest.others);
  std::string text = fastest_sentence(fastest, names);
  if (fastest.is_alone() && fastest.place == 0) {
    return text + " More ranks gain nothing.";
  }
  if (fastest.place == 0) return text;
  const Comparison gain = compare(series.front(), series[fastest.place], results.setting.margin);
  return text + fmt::format(" {} train {} as many samples per second as one rank.",
                            names[fastest.place], factor_text(gain.speed()));
}

Findings conclude_scaling(const Results& results) {
  FindingTable table{.title = "The same batch on more ranks",
                     .columns = {"ranks", "batch", "mean step", "speed-up", "efficiency",
                                 "exposed communication", ""}};
  PlotSeries measured{.name = "measured"};
  PlotSeries ideal{.name = "ideal", .style = SeriesStyle::kDashed};
  std::vector<std::string> labels;
  for (const Measurement& each : results.cases) {
    const int ranks = each.workload().ranks;
    const Estimate gain = gain_of(results, each);
    table.rows.push_back({std::to_string(ranks), std::to_string(each.workload().batch_size()),
                          time_text(each.mean_s()), factor_text(gain),
                          percent_text(efficiency_of(results, each)),
                          time_text(each.phase_s("communication")), beyond_text(each)});
    measured.points.push_back(plot_point(ranks, gain));
    measured.points.back().is_hollow = each.what().beyond_cores;
    ideal.points.push_back(plot_point(ranks, ranks));
    labels.push_back(counted(ranks, "rank"));
  }
  const std::vector<std::string> keys = keys_within_cores(results);
  Findings findings{.tables = {table},
                    .plots = {{.title = "Samples per second, as a multiple of one rank's",
                               .x_label = "ranks",
                               .y_label = "speed-up",
                               .log_x = true,
                               .log_y = true,
                               .series = {ideal, measured}},
                              account_plot(results.cases, labels)}};
  if (keys.size() < 2) {
    findings.facts = {
        {"not-compared",
         fmt::format("Fewer than two of these numbers of ranks have enough {} here, so they are "
                     "not compared.",
                     units_word(results.setting))}};
    return findings;
  }
  findings.sentences = {{"efficiency", efficiency_sentence(results, keys)}};
  findings.sentences.push_back({"fastest", fastest_ranks(results, keys, findings)});
  return findings;
}

}  // namespace

Experiment strong_scaling_experiment() {
  return {.name = "strong-scaling",
          .title = "Strong scaling",
          .question =
              "The same batch on 1, 2, 4 ranks: how much faster is a step, and where and why "
              "does efficiency drop?",
          .cases = scaling_cases,
          .conclude = conclude_scaling,
          .names = "efficiency fastest not-compared table plot phases-plot",
          .needs_mpi = true};
}

}  // namespace barestep
