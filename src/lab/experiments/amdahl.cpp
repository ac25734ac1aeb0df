// The serial fraction of a step, fitted to runs on several ranks.
#include <fmt/format.h>

#include <algorithm>

#include "lab/experiments/figures.h"
#include "lab/report/findings.h"
#include "lab/report/samples.h"

namespace barestep {
namespace {

/// The serial share in an exercise of the course (docs/lab.md).
constexpr double kExercise = 0.3;

std::vector<Case> amdahl_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int ranks : rank_counts(setting)) {
    Workload workload = ddp_workload(setting, ranks);
    workload.config.data.batch_size = setting.scaling_batch_size;
    cases.push_back(new_case(setting, ranks_key(ranks), workload));
  }
  return cases;
}

/// Fitted to the ranks within the cores.
Estimate fitted_share(const Results& results, const std::vector<std::string>& keys) {
  std::vector<std::vector<double>> step_s;
  for (const std::string& key : keys) step_s.push_back(results.at(key).mean_s_by_start());
  return estimate_by_round(step_s, [&](std::span<const double> of_round) {
    std::vector<SpeedUp> speed_ups;
    for (std::size_t i = 1; i < keys.size(); ++i) {
      speed_ups.push_back({results.at(keys[i]).workload().ranks, of_round[0] / of_round[i]});
    }
    return serial_fraction(speed_ups);
  });
}

/// `many` has the most ranks.
std::string share_sentence(const Estimate& serial, const Measurement& many) {
  switch (side_of(serial, 1)) {
    case Side::kAbove:
      return fmt::format(
          "No serial fraction below 1 fits: {} of a step of {} ranks is exposed communication.",
          percent_text(share_of(many, "communication")), many.workload().ranks);
    case Side::kOpen:
      return fmt::format(
          "Whether a serial fraction below 1 fits is unclear: {} of a step behaves as if it were "
          "serial.",
          percent_text(serial));
    case Side::kBelow:
      break;
  }
  std::string text =
      fmt::format("{} of a step behaves as if it were serial, ", percent_text(serial));
  text += side_of(serial, 0) == Side::kAbove
              ? fmt::format("so no number of ranks makes it more than {} as fast.",
                            factor_text(reciprocal(serial)))
              : "so these runs set no limit to the speed-up.";
  return text;
}

Findings conclude_amdahl(const Results& results) {
  const std::vector<std::string> keys = keys_within_cores(results);
  Findings findings;
  Estimate serial{1, 1, 1};
  if (keys.size() > 1) {
    serial = fitted_share(results, keys);
    findings.comparisons = results.compare(keys.front(), std::span(keys).subspan(1));
    const Comparison& last = findings.comparisons.back();
    const int ranks = results.at(last.b).workload().ranks;
    findings.sentences = {{"serial", share_sentence(serial, results.at(last.b))},
                          {"speed-up",
                           fmt::format("On {} ranks a step is {} as fast as on one.", ranks,
                                       factor_text(last.speed())),
                           last.word}};
    findings.facts = {
        {"exercise",
         fmt::format("A step of 30 % serial and 70 % parallel work would reach {} on {} ranks and "
                     "{} at most (calculated).",
                     factor_text(amdahl_speed_up(kExercise, ranks)), ranks,
                     factor_text(1 / kExercise))}};
  } else {
    findings.facts = {
        {"not-fitted",
         fmt::format("Fewer than two of these numbers of ranks have enough {} here, so no serial "
                     "fraction can be fitted.",
                     units_word(results.setting))}};
  }
  FindingTable table{.title = fmt::format("Speed-up against Amdahl's law, batch {}",
                                          results.cases.front().workload().batch_size()),
                     .columns = {"ranks", "mean step", "speed-up", "fitted", "30 % serial", ""}};
  // A share far below 0 has no curve: its speed-up is infinite on few ranks already.
  const bool fits = serial.median < 1 &&
                    amdahl_speed_up(serial.median, results.cases.back().workload().ranks) > 0;
  PlotSeries measured{.name = "measured", .style = SeriesStyle::kMarks};
  PlotSeries ideal{.name = "ideal", .style = SeriesStyle::kDashed};
  PlotSeries fit{.name = "Amdahl, fitted", .style = SeriesStyle::kLine};
  PlotSeries exercise{.name = "30 % serial", .style = SeriesStyle::kLine};
  for (const Measurement& each : results.cases) {
    const int ranks = each.workload().ranks;
    const Estimate speed_up =
        results.compare(results.cases.front().what().key, each.what().key).speed();
    table.rows.push_back({std::to_string(ranks), time_text(each.mean_s()), factor_text(speed_up),
                          fits ? factor_text(amdahl_speed_up(serial.median, ranks)) : "-",
                          factor_text(amdahl_speed_up(kExercise, ranks)),
                          each.what().beyond_cores ? beyond_text(each) + ", not fitted" : ""});
    measured.points.push_back(plot_point(ranks, speed_up));
    measured.points.back().is_hollow = each.what().beyond_cores;
    ideal.points.push_back(plot_point(ranks, ranks));
    if (fits) fit.points.push_back(plot_point(ranks, amdahl_speed_up(serial.median, ranks)));
    exercise.points.push_back(plot_point(ranks, amdahl_speed_up(kExercise, ranks)));
  }
  findings.tables = {table};
  findings.plots = {{.title = "Speed-up against ranks",
                     .x_label = "ranks",
                     .y_label = "speed-up",
                     .log_x = true,
                     .log_y = true,
                     .series = {ideal, exercise, measured}}};
  if (fits) findings.plots.front().series.push_back(fit);
  return findings;
}

}  // namespace

Experiment amdahl_experiment() {
  return {.name = "amdahl",
          .title = "Amdahl's law",
          .question = "Which share of a step is serial, and how fast can ranks make it at most?",
          .cases = amdahl_cases,
          .conclude = conclude_amdahl,
          .names = "serial speed-up exercise not-fitted table plot",
          .needs_mpi = true};
}

}  // namespace barestep
