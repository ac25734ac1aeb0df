// What slows ranks down: a pause of all of them, and one slow rank.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>

#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

/// Without a pause, with half of it, with it, and with twice as much: 0, 5, 10 and 20 ms.
std::array<double, 4> delays_ms(const Setting& setting) {
  return {0, setting.pause_ms / 2, setting.pause_ms, 2 * setting.pause_ms};
}

std::string delay_key(int ranks, double delay_ms) {
  return fmt::format("ranks-{}-delay-{}", ranks, delay_ms);
}

std::vector<Case> delay_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const double delay_ms : delays_ms(setting)) {
    for (const int ranks : {1, compared_with_one(setting)}) {
      cases.push_back(new_case(
          setting, delay_key(ranks, delay_ms),
          with(ddp_workload(setting, ranks), fmt::format("--batch-size {} --delay-ms {}",
                                                         setting.scaling_batch_size, delay_ms))));
    }
  }
  return cases;
}

/// Mean steps by start, of one rank and of several, for each of these pauses.
std::vector<std::vector<double>> paused_steps(const Results& results,
                                              std::span<const double> pauses_ms) {
  std::vector<std::vector<double>> step_s;
  for (const double delay_ms : pauses_ms) {
    for (const int ranks : {1, compared_with_one(results.setting)}) {
      step_s.push_back(results.at(delay_key(ranks, delay_ms)).mean_s_by_start());
    }
  }
  return step_s;
}

/// Linear if the second 10 ms cost the same as the first, within a quarter. By the law (T1 + d) /
/// (Tn + d) they cost Tn / (Tn + 20 ms) of it, which tells where the measurement is too noisy to.
void add_linear(FindingsOf& all, const Results& results, const Estimate& without) {
  constexpr double kLinear = 0.25;
  const double pause_ms = results.setting.pause_ms;
  const std::vector<std::vector<double>> step_s =
      paused_steps(results, std::array{0.0, pause_ms, 2 * pause_ms});
  /// What the pauses from the n-th of these to the next cost in speed-up.
  const auto cost_of = [](std::span<const double> s, std::size_t n) {
    return s[2 * n] / s[2 * n + 1] - s[2 * n + 2] / s[2 * n + 3];
  };
  const Estimate first = estimate_by_round(step_s, [&](auto s) { return cost_of(s, 0); });
  if (side_of(without, 1) == Word::kBelow || side_of(first, 0) != Word::kAbove) {
    all.timed("linear", fmt::format("No loss of speed-up is seen: without a pause it is {}, and "
                                    "the first {} ms cost {}.",
                                    factor_text(without), pause_ms, factor_text(first)));
    return;
  }
  const Estimate second =
      estimate_by_round(step_s, [&](auto s) { return cost_of(s, 1) / cost_of(s, 0); });
  const double many_s =
      results.at(delay_key(compared_with_one(results.setting), 0)).mean_s().median;
  const double by_law = many_s / (many_s + 2e-3 * pause_ms);
  const bool is_linear = second.low > 1 - kLinear && second.high < 1 + kLinear;
  const bool is_not = second.high < 1 - kLinear || second.low > 1 + kLinear;
  all.judge("linear",
            is_linear                        ? Word::kBelow
            : is_not || by_law < 1 - kLinear ? Word::kAbove
                                             : Word::kOpen,
            {"The loss is not linear", "The loss is linear in the pause",
             "Whether the loss is linear is unclear"},
            fmt::format("the second {} ms cost {} of what the first cost, and by (T1 + d) / "
                        "(Tn + d) {}",
                        pause_ms, percent_text(second), percent_text(by_law)));
}

/// Whether (T1 + d) / (Tn + d) foretells the speed-up with each pause, by rounds.
void add_law(FindingsOf& all, const Results& results) {
  constexpr double kAgrees = 1.1;
  const int ranks = compared_with_one(results.setting);
  std::vector<std::string> pairs;
  bool holds = true, fails = false;
  for (const double ms : {results.setting.pause_ms, 2 * results.setting.pause_ms}) {
    const auto law = [&](double one_s, double many_s) {
      return (one_s + 1e-3 * ms) / (many_s + 1e-3 * ms);
    };
    const Estimate off =
        estimate_by_round(paused_steps(results, std::array{ms, 0.0}),
                          [&](std::span<const double> s) { return s[0] / s[1] / law(s[2], s[3]); });
    holds = holds && off.low > 1 / kAgrees && off.high < kAgrees;
    fails = fails || off.low >= kAgrees || off.high <= 1 / kAgrees;
    pairs.push_back(fmt::format(
        "{} at {} ms, where {} was measured",
        factor_text(law(results.at(delay_key(1, 0)).mean_s().median,
                        results.at(delay_key(ranks, 0)).mean_s().median)),
        ms, factor_text(results.compare(delay_key(1, ms), delay_key(ranks, ms)).speed())));
  }
  all.judge("law",
            holds   ? Word::kBelow
            : fails ? Word::kAbove
                    : Word::kOpen,
            {"Amdahl's law does not hold here", "Amdahl's law holds within a tenth",
             "Whether Amdahl's law holds within a tenth is unclear"},
            fmt::format("from the steps without a pause it gives {}", fmt::join(pairs, ", and ")));
}

Findings delay_findings(const Results& results) {
  const double pause_ms = results.setting.pause_ms;
  const int ranks = compared_with_one(results.setting);
  std::vector<std::string> keys;
  std::vector<Comparison> gains;
  for (const double delay_ms : delays_ms(results.setting)) {
    gains.push_back(results.compare(delay_key(1, delay_ms), delay_key(ranks, delay_ms)));
    keys.push_back(gains.back().b);
  }
  adjust_together(gains);
  const auto delay_of = [](const Measurement& measured) {
    return measured.workload().config.injected.delay_ms;
  };
  const auto gain_with = [&](const Measurement& measured) {
    return results.compare(delay_key(1, delay_of(measured)), measured.what().key).speed();
  };
  FindingsOf all(results);
  all.timed("speed-ups",
            fmt::format("{} are {} as fast as one rank without a pause, {} with {} ms before "
                        "backward, {} with {}.",
                        several_words(ranks, "rank", true), factor_text(gains[0].speed()),
                        factor_text(gains[2].speed()), pause_ms, factor_text(gains[3].speed()),
                        2 * pause_ms));
  add_linear(all, results, gains.front().speed());
  add_law(all, results);
  return all
      .timed("limit",
             fmt::format(
                 "A pause of {} ms limits the speed-up to (T1 + d) / d, {} here.", pause_ms,
                 factor_text(1 + 1e3 * results.at(delay_key(1, 0)).mean_s().median / pause_ms)))
      .keep(gains)
      .table(
          "A pause before backward",
          {{"pause",
            [=](const Measurement& measured) { return fmt::format("{} ms", delay_of(measured)); }},
           "ranks",
           "batch",
           "time",
           "speed-up"})
      .plot({.title = fmt::format("Speed-up of {} against the pause", counted(ranks, "rank")),
             .x_label = "pause before backward, ms",
             .y_label = "speed-up",
             .series = {points_of("measured", results, keys, delay_of, gain_with)}});
}

std::vector<Case> imbalance_cases(const Setting& setting) {
  const std::vector<CaseRow> rows = {
      {"balanced"}, {"slow-rank-0", "", fmt::format("--slow-rank 0:{}", 2 * setting.pause_ms)}};
  return cases_of(setting, ddp_workload(setting, compared_with_one(setting)), rows);
}

/// A rank waits for the other if its additional communication is more than half of the increase of
/// the step, and more than twice the other's.
std::string waiting_text(const Measurement& slow, const Measurement& balanced) {
  const auto reduce_s = [](const Measurement& measured, int rank) {
    return measured.phase_s_by_start("communication", rank);
  };
  const auto more = [&](int rank) {
    return by_round(reduce_s(slow, rank), reduce_s(balanced, rank), std::minus<double>());
  };
  const std::vector<double> longer_s =
      by_round(slow.mean_s_by_start(), balanced.mean_s_by_start(), std::minus<double>());
  const auto waits = [&](int rank) {
    const auto beyond_half =
        by_round(more(rank), longer_s, [](double a, double b) { return a - b / 2; });
    const auto beyond_twice =
        by_round(more(rank), more(1 - rank), [](double a, double b) { return a - 2 * b; });
    return side_of(estimate_of(beyond_half), 0) == Word::kAbove &&
           side_of(estimate_of(beyond_twice), 0) == Word::kAbove;
  };
  const auto change = [&](int rank) {
    return time_text(
        estimate_by_round(reduce_s(slow, rank), reduce_s(balanced, rank), std::minus<double>()));
  };
  return fmt::format(
      "{}: the pause changes exposed communication by {} on rank 0 and by {} on "
      "rank 1.",
      waits(1)   ? "Rank 1 waits for rank 0"
      : waits(0) ? "Rank 0 waits for rank 1"
                 : "Whether one rank waits for the other is unclear",
      change(0), change(1));
}

Findings imbalance_findings(const Results& results) {
  const Measurement &balanced = results.at("balanced"), &slow = results.at("slow-rank-0");
  FindingTable table{.title = "Communication that a rank cannot hide: waiting for the others",
                     .columns = {"case", "rank", "mean step", "exposed communication"}};
  for (const Measurement* measured : {&balanced, &slow}) {
    for (int rank = 0; rank < measured->ranks(); ++rank) {
      table.rows.push_back({measured->what().key, std::to_string(rank),
                            time_text(measured->mean_s(rank).median),
                            time_text(measured->phase_s("communication", rank))});
    }
  }
  const Estimate longer =
      estimate_by_round(slow.mean_s_by_start(), balanced.mean_s_by_start(), std::minus<double>());
  return FindingsOf(results)
      .timed("waiting", waiting_text(slow, balanced))
      .compare(
          {{"balanced", "slow-rank-0",
            fmt::format("with {} ms on one rank of {}", 2 * results.setting.pause_ms, slow.ranks()),
            "without", "cost"}})
      .timed("longer",
             if_certain(longer, fmt::format("Rank 0's step is {} longer.", time_text(longer))))
      .table(std::move(table))
      .phases_of_ranks({"balanced", "rank 0 slow"});
}

}  // namespace

Experiment delay_experiment() {
  return {"delay",
          "A pause before backward",
          "Is the loss of speed-up linear in a pause that every rank makes?",
          delay_cases,
          delay_findings,
          "speed-ups linear law limit table plot"};
}

Experiment imbalance_experiment() {
  return {"imbalance",
          "One slow rank",
          "Rank 0 pauses 20 ms before backward: who waits for whom?",
          imbalance_cases,
          imbalance_findings,
          "waiting cost longer table phases-plot"};
}

}  // namespace barestep
