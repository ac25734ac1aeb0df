// What slows ranks down: a pause of all of them, and one slow rank.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include "lab/experiments/figures.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

constexpr int kSlowMs = 20;
const std::vector<int> kDelaysMs = {0, 5, 10, 20};

std::string delay_key(int ranks, int delay_ms) {
  return fmt::format("ranks-{}-delay-{}", ranks, delay_ms);
}

std::vector<Case> delay_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int delay_ms : kDelaysMs) {
    for (const int ranks : {1, compared_with_one(setting)}) {
      Workload workload = ddp_workload(setting, ranks);
      workload.config.data.batch_size = setting.scaling_batch_size;
      workload.config.injected.delay_ms = delay_ms;
      cases.push_back(new_case(setting, delay_key(ranks, delay_ms), workload));
    }
  }
  return cases;
}

/// Linear if the second 10 ms cost the same as the first, within a quarter. `without` is the
/// speed-up without a pause.
std::string linear_sentence(const Results& results, const Estimate& without) {
  constexpr double kLinear = 0.25;
  if (side_of(without, 1) == Side::kBelow) {
    return fmt::format("There was no speed-up to lose: without a pause it is {}.",
                       factor_text(without));
  }
  std::vector<std::vector<double>> step_s;
  for (const int delay_ms : {0, 10, 20}) {
    for (const int ranks : {1, compared_with_one(results.setting)}) {
      step_s.push_back(results.at(delay_key(ranks, delay_ms)).mean_s_by_start());
    }
  }
  /// What the pauses from the n-th of these to the next cost in speed-up.
  const auto cost_of = [](std::span<const double> s, std::size_t n) {
    return s[2 * n] / s[2 * n + 1] - s[2 * n + 2] / s[2 * n + 3];
  };
  const Estimate first = estimate_by_round(step_s, [&](auto s) { return cost_of(s, 0); });
  if (side_of(first, 0) != Side::kAbove) {
    return fmt::format("Whether a pause costs speed-up is unclear: the first 10 ms cost {}.",
                       factor_text(first));
  }
  const Estimate second =
      estimate_by_round(step_s, [&](auto s) { return cost_of(s, 1) / cost_of(s, 0); });
  const std::string cost =
      fmt::format("the second 10 ms cost {} of what the first cost", percent_text(second));
  if (second.low > 1 - kLinear && second.high < 1 + kLinear) {
    return fmt::format("The loss is linear in the pause: {}.", cost);
  }
  if (second.high < 1 - kLinear || second.low > 1 + kLinear) {
    return fmt::format(
        "The loss is not linear: {}. The pause is serial, so the speed-up, "
        "(T1 + d) / (Tn + d), approaches 1.",
        cost);
  }
  return fmt::format("Whether the loss is linear is unclear: {}.", cost);
}

Findings conclude_delay(const Results& results) {
  std::vector<double> delays, medians;
  Findings findings;
  const int ranks = compared_with_one(results.setting);
  const std::string several = counted(ranks, "rank");
  FindingTable table{.title = fmt::format("Speed-up of {} with a pause before backward, batch {}",
                                          several, results.cases.front().workload().batch_size()),
                     .columns = {"pause", "1 rank", several, "speed-up", "lost"}};
  PlotSeries measured{.name = "measured"};
  PlotSeries line{.name = "line", .style = SeriesStyle::kDashed};
  for (const int delay_ms : kDelaysMs) {
    const Comparison gain = results.compare(delay_key(1, delay_ms), delay_key(ranks, delay_ms));
    delays.push_back(delay_ms);
    medians.push_back(gain.speed().median);
    table.rows.push_back({fmt::format("{} ms", delay_ms), time_text(results.at(gain.a).mean_s()),
                          time_text(results.at(gain.b).mean_s()), factor_text(gain.speed()),
                          factor_text(medians.front() - medians.back())});
    measured.points.push_back(plot_point(delay_ms, gain.speed()));
    measured.points.back().is_hollow = results.at(gain.b).what().beyond_cores;
    findings.comparisons.push_back(gain);
  }
  adjust_together(findings.comparisons);
  const Line fit = fit_line(delays, medians);
  for (const double delay : delays) {
    line.points.push_back(plot_point(delay, fit.intercept + fit.slope * delay));
  }
  findings.sentences = {
      {"speed-ups",
       fmt::format("{} are {} as fast as one rank without a pause, {} with 10 ms before backward, "
                   "{} with 20.",
                   several_words(ranks, "rank", true), factor_text(findings.comparisons[0].speed()),
                   factor_text(findings.comparisons[2].speed()),
                   factor_text(findings.comparisons[3].speed()))},
      {"linear", linear_sentence(results, findings.comparisons.front().speed())}};
  findings.tables = {table};
  findings.plots = {{.title = fmt::format("Speed-up of {} against the pause", several),
                     .x_label = "pause before backward, ms",
                     .y_label = "speed-up",
                     .series = {line, measured}}};
  return findings;
}

std::vector<Case> imbalance_cases(const Setting& setting) {
  Workload slow = ddp_workload(setting, compared_with_one(setting));
  slow.config.injected.slow_rank = SlowRank{.rank = 0, .delay_ms = kSlowMs};
  return {new_case(setting, "balanced", ddp_workload(setting, compared_with_one(setting))),
          new_case(setting, "slow-rank-0", slow)};
}

/// A rank waits for the other if its additional communication is more than half of the increase of
/// the step, and more than twice the other's.
std::string waiting_sentence(const Measurement& slow, const Measurement& balanced) {
  const auto more = [&](const std::vector<double>& a, const std::vector<double>& b) {
    return by_round(a, b, std::minus<double>());
  };
  const auto reduce_s = [](const Measurement& each, int rank) {
    return each.phase_s_by_start("communication", rank);
  };
  const std::vector<double> longer_s = more(slow.mean_s_by_start(), balanced.mean_s_by_start());
  const auto waits = [&](int rank) {
    const auto own = more(reduce_s(slow, rank), reduce_s(balanced, rank));
    const auto other = more(reduce_s(slow, 1 - rank), reduce_s(balanced, 1 - rank));
    const auto beyond_half = by_round(own, longer_s, [](double a, double b) { return a - b / 2; });
    const auto beyond_twice = by_round(own, other, [](double a, double b) { return a - 2 * b; });
    return side_of(estimate_of(beyond_half), 0) == Side::kAbove &&
           side_of(estimate_of(beyond_twice), 0) == Side::kAbove;
  };
  const auto change = [&](int rank) {
    return time_text(
        estimate_by_round(reduce_s(slow, rank), reduce_s(balanced, rank), std::minus<double>()));
  };
  const std::string by =
      fmt::format("the pause changes exposed communication by {} on rank 0 and by {} on rank 1",
                  change(0), change(1));
  if (waits(1)) return fmt::format("Rank 1 waits for rank 0: {}.", by);
  if (waits(0)) return fmt::format("Rank 0 waits for rank 1: {}.", by);
  return fmt::format("Whether one rank waits for the other is unclear: {}.", by);
}

Findings conclude_imbalance(const Results& results) {
  const Measurement& balanced = results.at("balanced");
  const Measurement& slow = results.at("slow-rank-0");
  FindingTable table{.title = "Communication that a rank cannot hide: waiting for the others",
                     .columns = {"case", "rank", "mean step", "exposed communication"}};
  for (const Measurement* each : {&balanced, &slow}) {
    for (int rank = 0; rank < each->ranks(); ++rank) {
      table.rows.push_back({each->what().key, std::to_string(rank),
                            time_text(each->mean_s(rank).median),
                            time_text(each->phase_s("communication", rank))});
    }
  }
  const Estimate longer =
      estimate_by_round(slow.mean_s_by_start(), balanced.mean_s_by_start(), std::minus<double>());
  const Comparison cost = results.compare("balanced", "slow-rank-0");
  return {
      .sentences = {{"waiting", waiting_sentence(slow, balanced)},
                    {"cost",
                     sentence_of(cost,
                                 fmt::format("with {} ms on one rank of {}", kSlowMs, slow.ranks()),
                                 "without"),
                     cost.word},
                    {"longer", if_certain(longer, fmt::format("Rank 0's step is {} longer.",
                                                              time_text(longer)))}},
      .comparisons = {cost},
      .tables = {table},
      .plots = {ranks_plot(results.cases, {"balanced", "rank 0 slow"})}};
}

}  // namespace

Experiment delay_experiment() {
  return {.name = "delay",
          .title = "A pause before backward",
          .question = "Is the loss of speed-up linear in a pause that every rank makes?",
          .cases = delay_cases,
          .conclude = conclude_delay,
          .names = "speed-ups linear table plot",
          .needs_mpi = true};
}

Experiment imbalance_experiment() {
  return {.name = "imbalance",
          .title = "One slow rank",
          .question = "Rank 0 pauses 20 ms before backward: who waits for whom?",
          .cases = imbalance_cases,
          .conclude = conclude_imbalance,
          .names = "waiting cost longer table phases-plot",
          .needs_mpi = true};
}

}  // namespace barestep
