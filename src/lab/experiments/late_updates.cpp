// Ranks that hear of each other late or rarely: gradients that are some steps old, and averages of
// weights now and then.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "core/units.h"
#include "lab/experiments/figures.h"
#include "lab/predict/machine_card.h"
#include "lab/predict/prediction.h"
#include "lab/predict/simulator.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

// Late gradients.

constexpr std::array kStalenesses = {0, 1, 2, 4, 8};

std::string staleness_key(std::int64_t steps) {
  return fmt::format("late-{}", steps);
}

/// A model that learns from a teacher in some hundred steps.
Workload learning_workload(const Setting& setting, Workload workload) {
  TrainConfig& config = workload.config;
  config.model.dim = 64;
  config.model.depth = 4;
  config.training.recompute = 1;
  config.training.steps = setting.quick ? 100 : 400;
  config.training.update = Update::kSeparate;
  config.data.batch_size = 16;
  config.data.teacher = true;
  config.data.teacher_noise = 0.1;
  return workload;
}

std::vector<Case> staleness_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int steps : kStalenesses) {
    Workload workload = learning_workload(setting, base_workload(setting));
    workload.config.training.staleness = steps;
    cases.push_back(new_case(setting, staleness_key(steps), workload));
  }
  for (const int steps : {0, 1}) {
    Workload workload = sharing_workload(setting);
    workload.config.training.update = Update::kSeparate;
    workload.config.training.staleness = steps;
    cases.push_back(new_case(setting, "ranks-" + staleness_key(steps), workload));
  }
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
double loss_at_end(const Measurement& each) {
  const auto& losses = each.starts().front().ranks.front().loss;
  const auto count = std::max<std::ptrdiff_t>(std::ssize(losses) / 10, 1);
  double sum = 0;
  for (auto loss = losses.end() - count; loss != losses.end(); ++loss) sum += *loss;
  return sum / static_cast<double>(count);
}

Findings conclude_staleness(const Results& results) {
  FindingTable table{.title = "A model of 64 x 4 that learns from a teacher",
                     .columns = {"steps late", "loss at the end", "against none late"}};
  const double in_time = loss_at_end(results.at(staleness_key(0)));
  for (const int steps : kStalenesses) {
    const double loss = loss_at_end(results.at(staleness_key(steps)));
    table.rows.push_back(
        {std::to_string(steps), fmt::format("{:.4f}", loss), factor_text(loss / in_time)});
  }
  const Comparison gain = results.compare("ranks-late-0", "ranks-late-1");
  const double loss = loss_at_end(results.at(staleness_key(kStalenesses.back())));
  Findings findings{
      .sentences = {{"gain",
                     sentence_of(gain,
                                 "with gradients one step late on " +
                                     several_words(compared_with_one(results.setting), "rank"),
                                 "with gradients in time"),
                     gain.word}},
      .facts = {{"loss",
                 fmt::format("With gradients {} steps late the loss at the end is {} that with "
                             "gradients in time.",
                             kStalenesses.back(), factor_text(loss / in_time))}},
      .tables = {table, stability_table()}};
  keep(findings, std::array{gain});
  return findings;
}

// Local SGD.

constexpr std::array kRounds = {2, 8, 32};

std::string round_key(std::int64_t steps) {
  return fmt::format("every-{}", steps);
}

/// Their losses, of a small model that learns, and times of the setting's model. A run ends with an
/// average; so it has whole rounds, and two of the longest, or warm-up would count as a part of
/// one.
std::vector<Case> local_sgd_cases(const Setting& setting) {
  constexpr std::int64_t kLongest = kRounds.back();
  std::vector<Case> cases;
  const auto add = [&](const std::string& key, std::int64_t every, OuterOptimizer outer) {
    for (const bool learns : {false, true}) {
      Workload workload = sharing_workload(setting);
      if (learns) {
        workload = learning_workload(setting, workload);
      } else {
        const std::int64_t rounds = (setting.steps + kLongest - 1) / kLongest;
        workload.config.training.steps = kLongest * std::max<std::int64_t>(rounds, 2);
      }
      workload.config.training.update = Update::kSeparate;
      workload.config.parallel.sync_every = every;
      workload.config.parallel.outer = outer;
      cases.push_back(new_case(setting, learns ? key + "-learns" : key, workload));
    }
  };
  add("ddp", 1, OuterOptimizer::kNone);
  for (const int steps : kRounds) add(round_key(steps), steps, OuterOptimizer::kNone);
  add("diloco-8", 8, OuterOptimizer::kDiLoCo);
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

Findings conclude_local_sgd(const Results& results) {
  FindingTable table{.title = several_words(compared_with_one(results.setting), "rank", true) +
                              " that average their weights",
                     .columns = {"case", "mean step", "speed against ddp", "exposed communication",
                                 "a rank sends a step", "loss of 64 x 4 at the end"}};
  std::vector<std::string> keys;
  for (const Measurement& each : results.cases) {
    const std::string& key = each.what().key;
    if (key.ends_with("-learns")) continue;
    if (key != "ddp") keys.push_back(key);
    table.rows.push_back(
        {key, time_text(each.mean_s()), factor_text(results.compare("ddp", key).speed()),
         time_text(each.phase_s("communication")), human_bytes(sent_in_a_round(each.workload())),
         fmt::format("{:.4f}", loss_at_end(results.at(key + "-learns")))});
  }
  const std::string longest = round_key(kRounds.back());
  const std::vector<Comparison> gains = results.compare("ddp", keys);
  const Comparison& gain = *std::ranges::find(gains, longest, &Comparison::b);
  const double loss = loss_at_end(results.at(longest + "-learns"));
  Findings findings{
      .sentences = {{"gain",
                     sentence_of(gain, fmt::format("with averages every {} steps", kRounds.back()),
                                 "with ddp"),
                     gain.word}},
      .facts = {{"loss",
                 fmt::format("The small model's loss at the end is {} that of ddp if ranks average "
                             "every {} steps.",
                             factor_text(loss / loss_at_end(results.at("ddp-learns"))),
                             kRounds.back())}},
      .tables = {table}};
  keep(findings, gains);
  return findings;
}

}  // namespace

Experiment staleness_experiment() {
  return {.name = "staleness",
          .title = "Gradients that come late",
          .question = "What does it gain to apply gradients later, and what does the loss pay?",
          .cases = staleness_cases,
          .conclude = conclude_staleness,
          .names = "gain loss table stability-table",
          .needs_mpi = true,
          .chooses = false};
}

Experiment local_sgd_experiment() {
  return {.name = "local-sgd",
          .title = "Averages now and then",
          .question = "What does it gain if ranks average their weights every few steps only?",
          .cases = local_sgd_cases,
          .conclude = conclude_local_sgd,
          .names = "gain loss table",
          .needs_mpi = true};
}

}  // namespace barestep
