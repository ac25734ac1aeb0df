#include "lab/study/prediction_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "core/host.h"
#include "core/statistics.h"
#include "core/units.h"
#include "lab/study/measured_card.h"
#include "lab/study/step_parts.h"

namespace barestep {
namespace {

constexpr double kGoal = 0.1;

struct Deviation {
  std::string name;
  double more_s = 0;  // predicted minus measured
};

/// Those with the cores as far apart as they were for the card's rates.
std::vector<bool> starts_like(const MachineCard& card, const Measurement& measured) {
  const MachineLoad* const load = load_of(measured.workload(), card);
  std::vector<bool> alike;
  for (const Start& start : measured.starts()) {
    alike.push_back(load == nullptr ||
                    same_core_distance(start.core_distance_s, load->core_distance_s));
  }
  return alike;
}

/// The starts that a prediction is compared with, or all if there are none.
std::vector<bool> comparable_starts(const Results& results, std::size_t number) {
  const Measurement& measured = results.cases[number];
  std::vector<bool> alike(measured.starts().size(), true);
  if (results.card) alike = starts_like(card_of_starts(*results.card, measured), measured);
  if (std::ranges::count(alike, true) == 0) alike.assign(alike.size(), true);
  return alike;
}

Estimate compared(const Results& results, std::size_t number, const std::vector<double>& by_start) {
  const std::vector<bool> is_comparable = comparable_starts(results, number);
  std::vector<double> figures;
  for (std::size_t i = 0; i < by_start.size(); ++i) {
    if (is_comparable[i]) figures.push_back(by_start[i]);
  }
  return estimate_of(figures);
}

/// The part of a step with the largest prediction error.
Deviation worst_part(const Results& results, std::size_t number) {
  Deviation worst;
  for (const std::string_view phase : account_phases()) {
    const double more_s = results.predictions[number]->account.seconds_of(phase) -
                          compared_phase_s(results, number, phase);
    if (worst.name.empty() || std::abs(more_s) > std::abs(worst.more_s)) {
      worst = {phase_words(phase), more_s};
    }
  }
  return worst;
}

std::string signed_percent(double share) {
  return fmt::format("{}{}", share >= 0 ? "+" : "", percent_text(share));
}

std::string difference_text(double seconds) {
  return fmt::format("{}{}", seconds >= 0 ? "+" : "", time_text(seconds));
}

/// Cases that run the same command line, all compared with one prediction.
struct DistinctPrediction {
  std::vector<std::pair<const Results*, std::size_t>> cases{};

  [[nodiscard]] const Measurement& measured(std::size_t number) const {
    return cases[number].first->cases[cases[number].second];
  }
  [[nodiscard]] const SimulatedStep& predicted() const {
    return *cases.front().first->predictions[cases.front().second];
  }
  [[nodiscard]] bool beyond_cores() const { return measured(0).what().beyond_cores; }
  /// (predicted - measured) / measured, with the median over the cases as the measurement.
  [[nodiscard]] double error() const {
    std::vector<double> all_s;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      all_s.push_back(compared_step_s(*cases[i].first, cases[i].second).median);
    }
    return predicted().step_s / median(all_s) - 1;
  }
};

std::vector<DistinctPrediction> distinct_predictions(const std::vector<const Results*>& all) {
  std::map<std::string, DistinctPrediction> by_command;
  for (const Results* results : all) {
    for (std::size_t i = 0; i < results->predictions.size(); ++i) {
      if (!results->predictions[i]) continue;
      const std::string command = command_line_of(results->cases[i].workload());
      by_command[command].cases.emplace_back(results, i);
    }
  }
  std::vector<DistinctPrediction> distinct;
  for (auto& [command, prediction] : by_command) distinct.push_back(std::move(prediction));
  return distinct;
}

/// How ranks or devices share a step, as bench/predictions.py names it.
std::string scheme_words(const Workload& workload) {
  const ParallelConfig& parallel = workload.config.parallel;
  if (workload.scheme() == SchemeKind::kSingle) return "one device";
  if (workload.scheme() == SchemeKind::kDataParallel) {
    return parallel.pipeline > 1 ? "stages of a process" : "data-parallel";
  }
  std::string words(parallel.sync_every > 1 ? "local SGD" : name_of(workload.scheme()));
  if (parallel.tensor > 1) words += ", tensor";
  if (parallel.pipeline > 1) words += ", pipeline";
  return words;
}

/// Two cases of an experiment whose measured times certainly differ.
struct CertainPair {
  std::string scheme_a{}, scheme_b{};
  bool is_right = false;  // the one that is faster was predicted to be
};

void add_pairs(const Results& results, std::vector<CertainPair>& pairs) {
  for (std::size_t i = 0; i < results.predictions.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Measurement &a = results.cases[i], &b = results.cases[j];
      const auto &of_a = results.predictions[i], &of_b = results.predictions[j];
      if (!of_a || !of_b || a.what().beyond_cores || b.what().beyond_cores) continue;
      if (command_line_of(a.workload()) == command_line_of(b.workload())) continue;
      const Estimate ratio = results.compare(a.what().key, b.what().key).ratio;
      if (!ratio.has_interval() || (ratio.low <= 1 && ratio.high >= 1)) continue;
      pairs.push_back({scheme_words(a.workload()), scheme_words(b.workload()),
                       (of_b->step_s > of_a->step_s) == (ratio.median > 1)});
    }
  }
}

std::vector<CertainPair> certain_pairs(const std::vector<const Results*>& all) {
  std::vector<CertainPair> pairs;
  for (const Results* results : all) add_pairs(*results, pairs);
  return pairs;
}

/// Nothing if none of them is within the cores.
std::optional<PredictionSummary> summarized(const std::vector<DistinctPrediction>& predictions,
                                            const std::vector<CertainPair>& pairs) {
  PredictionSummary summary{.pairs = static_cast<int>(pairs.size())};
  std::vector<double> errors;
  for (const DistinctPrediction& prediction : predictions) {
    if (prediction.beyond_cores()) {
      ++summary.beyond_cores;
    } else {
      errors.push_back(std::abs(prediction.error()));
    }
  }
  if (errors.empty()) return std::nullopt;
  std::ranges::sort(errors);
  summary.runs = static_cast<int>(errors.size());
  summary.median_error = median(errors);
  summary.p90_error = percentile(errors, 90);
  summary.worst_error = errors.back();
  const auto within = std::ranges::count_if(errors, [](double error) { return error <= kGoal; });
  summary.within_tenth = static_cast<double>(within) / static_cast<double>(errors.size());
  summary.right_pairs = static_cast<int>(std::ranges::count(pairs, true, &CertainPair::is_right));
  return summary;
}

/// A row for each scheme, of the predictions and of the pairs with it.
FindingTable schemes_table(const std::vector<DistinctPrediction>& predictions,
                           const std::vector<CertainPair>& pairs) {
  FindingTable table{.title = "Errors of the predictions by scheme",
                     .name = "schemes-table",
                     .columns = {"scheme", "predictions", "median", "90th percentile", "worst",
                                 "direction right"}};
  std::map<std::string, std::vector<DistinctPrediction>> by_scheme;
  for (const DistinctPrediction& prediction : predictions) {
    by_scheme[scheme_words(prediction.measured(0).workload())].push_back(prediction);
  }
  for (const auto& group : by_scheme) {
    const std::string& scheme = group.first;
    std::vector<CertainPair> with;
    std::ranges::copy_if(pairs, std::back_inserter(with), [&](const CertainPair& pair) {
      return pair.scheme_a == scheme || pair.scheme_b == scheme;
    });
    const std::optional<PredictionSummary> summary = summarized(group.second, with);
    if (!summary) continue;
    table.rows.push_back(
        {scheme, std::to_string(summary->runs), percent_text(summary->median_error),
         percent_text(summary->p90_error), percent_text(summary->worst_error),
         summary->pairs == 0 ? "-"
                             : fmt::format("{} of {}", summary->right_pairs, summary->pairs)});
  }
  return table;
}

/// A row for each case with the part of the step that is off most, the worst first.
FindingTable cases_table(const std::vector<const Results*>& all) {
  FindingTable table{.title = "Every case, predicted (simulated) and measured, the worst first",
                     .columns = {"case", "predicted", "measured", "error", "largest error", ""},
                     .on_screen = 10};
  std::vector<std::pair<const Results*, std::size_t>> cases;
  for (const Results* results : all) {
    for (std::size_t i = 0; i < results->predictions.size(); ++i) {
      if (results->predictions[i]) cases.emplace_back(results, i);
    }
  }
  std::ranges::stable_sort(cases, std::ranges::greater{}, [](const auto& entry) {
    return std::abs(prediction_error(*entry.first, entry.second));
  });
  for (const auto& [results, i] : cases) {
    const Measurement& measured = results->cases[i];
    const SimulatedStep& predicted = *results->predictions[i];
    const Deviation worst = worst_part(*results, i);
    table.rows.push_back({fmt::format("{}: {}", results->name, measured.what().key),
                          simulated_time(predicted.step_s), time_text(compared_step_s(*results, i)),
                          signed_percent(prediction_error(*results, i)),
                          fmt::format("{} {}", worst.name, difference_text(worst.more_s)),
                          beyond_text(measured)});
  }
  return table;
}

/// How often each part is the worst one in predictions that miss the goal.
std::string cause_text(const std::vector<DistinctPrediction>& predictions) {
  std::map<std::string, int> causes;
  int misses = 0;
  for (const DistinctPrediction& prediction : predictions) {
    if (prediction.beyond_cores() || std::abs(prediction.error()) <= kGoal) continue;
    const auto& [results, number] = prediction.cases.front();
    ++causes[worst_part(*results, number).name];
    ++misses;
  }
  if (misses == 0)
    return "Each prediction within the cores is within a tenth of the measured time.";
  const int max =
      std::ranges::max_element(causes, {}, [](const auto& cause) { return cause.second; })->second;
  std::vector<std::string> names;
  for (const auto& [name, count] : causes) {
    if (count == max) names.push_back(name);
  }
  return fmt::format(
      "{} {} off by more than a tenth; the part with the largest error is {} in {} of them{}.",
      counted(misses, "prediction"), misses == 1 ? "is" : "are", list_text(names), max,
      names.size() == 1 ? "" : " each");
}

Plot prediction_plot(const std::vector<const Results*>& all) {
  PlotSeries runs{.name = "runs", .style = SeriesStyle::kMarks};
  PlotSeries equal{.name = "equal", .style = SeriesStyle::kDashed};
  std::set<double> ends;
  for (const Results* results : all) {
    for (std::size_t i = 0; i < results->predictions.size(); ++i) {
      if (!results->predictions[i]) continue;
      const Measurement& measured = results->cases[i];
      const double predicted_ms = 1e3 * results->predictions[i]->step_s;
      const Estimate measured_s = compared_step_s(*results, i);
      runs.points.push_back(plot_point(predicted_ms, measured_s, 1e3));
      runs.points.back().is_hollow = measured.what().beyond_cores;
      ends.insert({predicted_ms, 1e3 * measured_s.median});
    }
  }
  for (const double ms : {*ends.begin(), *ends.rbegin()})
    equal.points.push_back(plot_point(ms, ms));
  return {.title = "Measured step times against predicted (simulated) ones",
          .x_label = "predicted, ms",
          .y_label = "measured, ms",
          .log_x = true,
          .log_y = true,
          .series = {equal, runs}};
}

}  // namespace

MachineCard card_of_starts(const MachineCard& card, const Measurement& measured) {
  MachineCard best = card;
  for (const Start& start : measured.starts()) {
    MachineCard there = in_arrangement(card, start.core_distance_s);
    if (there.loads.size() == card.loads.size()) continue;  // known in one arrangement only
    const auto alike = [&](const MachineCard& of) {
      return std::ranges::count(starts_like(of, measured), true);
    };
    if (alike(there) > alike(best)) best = std::move(there);
  }
  return best;
}

Estimate compared_step_s(const Results& results, std::size_t number) {
  const Measurement& measured = results.cases.at(number);
  const TrainConfig& config = measured.workload().config;
  const bool differ = config.parallel.sync_every > 1 || config.injected.jitter_ms > 0;
  return compared(results, number,
                  differ ? measured.mean_s_by_start() : measured.step_s_by_start());
}

double compared_phase_s(const Results& results, std::size_t number, std::string_view phase) {
  return compared(results, number, results.cases.at(number).phase_s_by_start(phase)).median;
}

double prediction_error(const Results& results, std::size_t number) {
  return results.predictions.at(number).value().step_s / compared_step_s(results, number).median -
         1;
}

std::optional<PredictionSummary> prediction_summary(const std::vector<const Results*>& all) {
  return summarized(distinct_predictions(all), certain_pairs(all));
}

Findings prediction_findings(const std::vector<const Results*>& all) {
  const std::vector<DistinctPrediction> predictions = distinct_predictions(all);
  const std::vector<CertainPair> pairs = certain_pairs(all);
  const std::optional<PredictionSummary> summary = summarized(predictions, pairs);
  if (!summary) return {};
  double others_share = 0;
  for (const Results* results : all) {
    others_share = std::max(others_share, results->card ? results->card->others_share : 0);
  }
  std::vector<Finding> sentences = {
      fmt::format("The simulation's median error over {} within the cores is {} (goal: {}); {} of "
                  "them are within the goal. Cases of one command line count once.",
                  counted(summary->runs, "distinct prediction"),
                  percent_text(summary->median_error), chosen_percent(kGoal),
                  percent_text(summary->within_tenth)),
      fmt::format("The 90th percentile of the errors is {}, the worst {}. Of {} of an experiment "
                  "whose measured times certainly differ, the faster one was predicted in {}.",
                  percent_text(summary->p90_error), percent_text(summary->worst_error),
                  counted(summary->pairs, "pair"), summary->right_pairs),
      cause_text(predictions)};
  std::int64_t starts = 0, moved = 0;
  for (const Results* results : all) {
    for (std::size_t i = 0; i < results->predictions.size(); ++i) {
      const std::vector<bool> alike = comparable_starts(*results, i);
      starts += std::ssize(alike);
      moved += std::ranges::count(alike, false);
    }
  }
  if (moved > 0) {
    sentences.push_back(fmt::format(
        "{} of {} are not compared: the hypervisor had moved the cores of this machine since its "
        "rates were measured, so that they share another cache, or none.",
        moved, counted(starts, "start")));
  }
  if (summary->beyond_cores > 0) {
    sentences.push_back(fmt::format("{} beyond the cores {} shown and not counted.",
                                    counted(summary->beyond_cores, "prediction"),
                                    summary->beyond_cores == 1 ? "is" : "are"));
  }
  const std::optional<MachineCard>& card = all.front()->card;
  if (card && unmeasured_figures(*card) > 0) {
    sentences.push_back(error_note(*card));
  } else {
    sentences.push_back(fmt::format(
        "Rates were measured here, op by op in steps of other sizes; other programs used at "
        "most {} of the cores meanwhile.",
        percent_text(others_share)));
  }
  return {.timed = sentences,
          .tables = {schemes_table(predictions, pairs), cases_table(all)},
          .plots = {prediction_plot(all)}};
}

}  // namespace barestep
