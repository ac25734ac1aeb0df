// Ranks that hear of each other late or rarely: gradients that are some steps old, and averages of
// weights now and then.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "core/units.h"
#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

// Late gradients.

constexpr std::array kStalenesses = {0, 1, 2, 4, 8};

std::string staleness_key(std::int64_t steps) {
  return fmt::format("late-{}", steps);
}

/// A model that learns from a teacher in some hundred steps.
Workload learning_workload(const Setting& setting, const Workload& run) {
  return with(run, fmt::format("--dim 64 --depth 4 --recompute 1 --steps {} --update separate "
                               "--batch-size 16 --data teacher --teacher-noise 0.1",
                               setting.quick ? 100 : 400));
}

Workload late_ranks(const Setting& setting) {
  return with(ddp_workload(setting, compared_with_one(setting)), "--recompute 1 --update separate");
}

std::vector<Case> staleness_cases(const Setting& setting) {
  std::vector<CaseRow> learning;
  for (const int steps : kStalenesses) {
    learning.push_back({staleness_key(steps), "", fmt::format("--staleness {}", steps)});
  }
  std::vector<Case> cases =
      cases_of(setting, learning_workload(setting, base_workload(setting)), learning);
  const std::vector<CaseRow> timed = {{"ranks-late-0", "", "--staleness 0"},
                                      {"ranks-late-1", "", "--staleness 1"}};
  std::ranges::move(cases_of(setting, late_ranks(setting), timed), std::back_inserter(cases));
  return cases;
}

/// The largest rate at which w <- w - rate * (w of K updates before) dies out, by trying: the
/// gradient of a parabola with curvature 1.
double largest_stable_rate(int staleness) {
  const auto dies_out = [&](double rate) {
    std::vector<double> weights(static_cast<std::size_t>(staleness) + 1, 1.0);  // the newest last
    double early = 0, late = 0;
    constexpr int kSteps = 20'000;
    for (int step = 0; step < kSteps; ++step) {
      const double next = weights.back() - rate * weights.front();
      std::rotate(weights.begin(), weights.begin() + 1, weights.end());
      weights.back() = next;
      if (!std::isfinite(next)) return false;
      double& largest = step < kSteps / 2 ? early : late;
      if (step % (kSteps / 2) > kSteps / 4) largest = std::max(largest, std::abs(next));
    }
    return late <= early;
  };
  double low = 0, high = 4;
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    (dies_out(middle) ? low : high) = middle;
  }
  return low;
}

FindingTable stability_table() {
  FindingTable table{.title = "Largest stable learning rate times curvature",
                     .name = "stability-table",
                     .columns = {"steps late", "2 sin(pi / (2 (2 K + 1)))", "by trying"}};
  for (const int steps : kStalenesses) {
    table.rows.push_back(
        {std::to_string(steps),
         fmt::format("{:.3f}", 2 * std::sin(std::numbers::pi / (2 * (2 * steps + 1)))),
         fmt::format("{:.3f}", largest_stable_rate(steps))});
  }
  return table;
}

/// The mean of the last tenth of a run's losses: each is that of other samples.
double loss_at_end(const Measurement& measured) {
  const auto& losses = measured.starts().front().ranks.front().loss;
  const auto count = std::max<std::ptrdiff_t>(std::ssize(losses) / 10, 1);
  double sum = 0;
  for (auto loss = losses.end() - count; loss != losses.end(); ++loss) sum += *loss;
  return sum / static_cast<double>(count);
}

Findings staleness_findings(const Results& results) {
  std::vector<std::string> keys;
  for (const int steps : kStalenesses) keys.push_back(staleness_key(steps));
  const auto against_none = [&](const Measurement& measured) {
    return factor_text(loss_at_end(measured) / loss_at_end(results.at(staleness_key(0))));
  };
  return FindingsOf(results)
      .compare({{"ranks-late-0", "ranks-late-1",
                 "with gradients one step late on " +
                     several_words(compared_with_one(results.setting), "rank"),
                 "with gradients in time", "gain"}})
      .untimed("loss",
               fmt::format("With gradients {} steps late the loss at the end is {} that with "
                           "gradients in time.",
                           kStalenesses.back(), against_none(results.at(keys.back()))))
      .table("A model of 64 x 4 that learns from a teacher",
             {{"steps late",
               [](const Measurement& measured) {
                 return std::to_string(measured.workload().config.training.staleness);
               }},
              {"loss at the end",
               [](const Measurement& measured) {
                 return fmt::format("{:.4f}", loss_at_end(measured));
               }},
              {"against none late", against_none}},
             keys)
      .table(stability_table());
}

// Local SGD.

constexpr std::array kRounds = {2, 8, 32};

/// Their losses, of a small model that learns, and times of the setting's model. A run ends with an
/// average; so it has whole rounds, and two of the longest, or warm-up would count as a part of
/// one.
std::vector<Case> local_sgd_cases(const Setting& setting) {
  constexpr std::int64_t kLongest = kRounds.back();
  const std::int64_t rounds = std::max<std::int64_t>((setting.steps + kLongest - 1) / kLongest, 2);
  const Workload run = with(late_ranks(setting), fmt::format("--steps {}", kLongest * rounds));
  std::vector<CaseRow> rows = {{"ddp", "", "--sync-every 1"}};
  for (const int steps : kRounds) {
    rows.push_back({fmt::format("every-{}", steps), "", fmt::format("--sync-every {}", steps)});
  }
  rows.push_back({"diloco-8", "", "--sync-every 8 --outer diloco"});
  std::vector<Case> cases;
  for (const CaseRow& row : rows) {
    cases.push_back(new_case(setting, row.key, with(run, row.options)));
    cases.push_back(
        new_case(setting, row.key + "-learns", with(learning_workload(setting, run), row.options)));
  }
  return cases;
}

/// The mean of the steps of a round.
std::int64_t sent_in_a_round(const Workload& workload) {
  const WorkloadPrograms programs(workload);
  const std::int64_t every = workload.config.parallel.sync_every;
  std::int64_t sum = 0;
  for (std::int64_t step = 0; step < every; ++step) {
    const Program& program = programs.steps().of({.number = step}, true).program;
    sum += bytes_sent(program, programs.mesh());
  }
  return sum / every;
}

Findings local_sgd_findings(const Results& results) {
  std::vector<std::string> keys;
  for (const std::string& key : keys_of(results)) {
    if (!key.ends_with("-learns")) keys.push_back(key);
  }
  const auto loss_of = [&](const std::string& key) {
    return loss_at_end(results.at(key + "-learns"));
  };
  const std::string longest = fmt::format("every-{}", kRounds.back());
  const std::vector<Comparison> gains = results.compare("ddp", std::span(keys).subspan(1));
  const Comparison& gain = *std::ranges::find(gains, longest, &Comparison::b);
  return FindingsOf(results)
      .timed("gain",
             text_of(gain, fmt::format("with averages every {} steps", kRounds.back()), "with ddp"),
             gain.word)
      .keep(gains)
      .untimed("loss", fmt::format("The small model's loss at the end is {} that of ddp if ranks "
                                   "average every {} steps.",
                                   factor_text(loss_of(longest) / loss_of("ddp")), kRounds.back()))
      .table(several_words(compared_with_one(results.setting), "rank", true) +
                 " that average their weights",
             {"case",
              "time",
              speed_against("ddp", "speed against ddp"),
              "communication",
              {"a rank sends a step",
               [](const Measurement& measured) {
                 return human_bytes(sent_in_a_round(measured.workload()));
               }},
              {"loss of 64 x 4 at the end",
               [=](const Measurement& measured) {
                 return fmt::format("{:.4f}", loss_of(measured.what().key));
               }}},
             keys);
}

}  // namespace

Experiment staleness_experiment() {
  return {"staleness",
          "Gradients that come late",
          "What does it gain to apply gradients later, and what does the loss pay?",
          staleness_cases,
          staleness_findings,
          "gain loss table stability-table",
          false};
}

Experiment local_sgd_experiment() {
  return {"local-sgd",
          "Averages now and then",
          "What does it gain if ranks average their weights every few steps only?",
          local_sgd_cases,
          local_sgd_findings,
          "gain loss table"};
}

}  // namespace barestep
