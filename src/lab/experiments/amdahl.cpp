// The serial fraction of a step, fitted to runs on several ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/experiments/all.h"
#include "lab/findings.h"
#include "lab/samples.h"

namespace barestep {
namespace {

std::vector<Case> amdahl_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int ranks : rank_counts(setting)) {
    cases.push_back(new_case(setting, ranks_key(ranks), ddp_workload(setting, ranks)));
  }
  return cases;
}

std::vector<SpeedUp> fitted_speed_ups(const Results& results) {
  std::vector<SpeedUp> all;
  for (const Measurement& each : results.cases) {
    if (each.what().beyond_cores || each.workload().ranks == 1) continue;
    all.push_back({each.workload().ranks, ratio(results.cases.front().step_s(), each.step_s())});
  }
  return all;
}

std::vector<std::string> amdahl_sentences(const Results& results, const Estimate& serial) {
  const auto& last =
      *std::ranges::find_if(results.cases.rbegin(), results.cases.rend(),
                            [](const Measurement& each) { return !each.what().beyond_cores; });
  if (last.workload().ranks == 1) {
    return {"There is room for one rank here, so no serial fraction can be fitted."};
  }
  const Estimate speed_up = ratio(results.cases.front().step_s(), last.step_s());
  if (serial.median >= 1) {
    return {fmt::format(
        "More ranks do not make the step faster: {} ranks reach {} of one. No "
        "serial fraction below 1 fits, since communication adds time that one rank "
        "does not have ({} a step exposed).",
        last.workload().ranks, factor_text(speed_up), time_text(last.phase_s("reduce")))};
  }
  const double most = serial.median <= 0 ? INFINITY : 1 / serial.median;
  std::string text =
      fmt::format("{} of a step behave as if they were serial ({} to {}), ",
                  percent_text(serial.median), percent_text(serial.low), percent_text(serial.high));
  text += std::isinf(most) ? "so the runs set no limit to the speed-up."
                           : fmt::format("so no number of ranks makes it more than {} faster.",
                                         factor_text(most));
  return {text,
          fmt::format("The exercise's step of 30 % serial and 70 % parallel work would reach {} on "
                      "{} ranks and {} at most; this one reaches {}.",
                      factor_text(amdahl_speed_up(0.3, last.workload().ranks)),
                      last.workload().ranks, factor_text(1 / 0.3), factor_text(speed_up))};
}

Findings conclude_amdahl(const Results& results) {
  const Estimate serial = serial_fraction(fitted_speed_ups(results));
  FindingTable table{.title = "Speed-up against Amdahl's law",
                     .columns = {"ranks", "step time", "speed-up", "fitted", "30 % serial", ""}};
  PlotSeries measured{.name = "measured", .style = SeriesStyle::kMarks};
  PlotSeries ideal{.name = "ideal", .style = SeriesStyle::kDashed};
  PlotSeries fit{.name = "Amdahl, fitted", .style = SeriesStyle::kLine};
  PlotSeries exercise{.name = "30 % serial", .style = SeriesStyle::kLine};
  for (const Measurement& each : results.cases) {
    const int ranks = each.workload().ranks;
    const Estimate speed_up = ratio(results.cases.front().step_s(), each.step_s());
    const bool beyond = each.what().beyond_cores;
    table.rows.push_back({std::to_string(ranks), time_text(each.step_s()), factor_text(speed_up),
                          factor_text(amdahl_speed_up(serial.median, ranks)),
                          factor_text(amdahl_speed_up(0.3, ranks)),
                          beyond ? "beyond the cores, not fitted" : ""});
    measured.points.push_back(plot_point(ranks, speed_up));
    ideal.points.push_back(plot_point(ranks, ranks));
    fit.points.push_back(plot_point(ranks, amdahl_speed_up(serial.median, ranks)));
    exercise.points.push_back(plot_point(ranks, amdahl_speed_up(0.3, ranks)));
  }
  return {.sentences = amdahl_sentences(results, serial),
          .tables = {table},
          .plots = {{.title = "Speed-up against ranks",
                     .x_label = "ranks",
                     .y_label = "speed-up",
                     .log_x = true,
                     .series = {ideal, fit, exercise, measured}}}};
}

}  // namespace

Experiment amdahl_experiment() {
  return {.name = "amdahl",
          .title = "Amdahl's law",
          .question = "Which share of a step is serial, and how fast can ranks make it at most?",
          .cases = amdahl_cases,
          .conclude = conclude_amdahl,
          .needs_mpi = true};
}

}  // namespace barestep
