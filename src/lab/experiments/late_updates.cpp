// Ranks that hear of each other late or rarely: gradients that are some steps old, and averages of
// weights now and then. Steps of the setting's model are timed; a small model that learns from a
// teacher tells what each way does to its loss.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "core/statistics.h"
#include "core/units.h"
#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

constexpr std::int64_t kLongestRound = 32;

const std::vector<CaseRow> kLateWays = {
    {"ddp", "with ddp", "--sync-every 1"},
    {"late-1", "with gradients a step late", "--staleness 1"},
    {"late-8", "with gradients 8 steps late", "--staleness 8"},
    {"every-2", "with averages every 2 steps", "--sync-every 2"},
    {"every-8", "with averages every 8 steps", "--sync-every 8"},
    {"every-32", "with averages every 32 steps", "--sync-every 32"},
    {"diloco-8", "with DiLoCo's averages every 8 steps", "--sync-every 8 --outer diloco"}};

std::string learning_key(const std::string& way) {
  return way + "-learns";
}

/// A run ends with an average; so it has whole rounds, and two of the longest, or warm-up would
/// count as a part of one.
std::vector<Case> local_sgd_cases(const Setting& setting) {
  const std::int64_t rounds =
      std::max<std::int64_t>((setting.steps + kLongestRound - 1) / kLongestRound, 2);
  const Workload ranks =
      with(ddp_workload(setting, compared_with_one(setting)), "--recompute 1 --update separate");
  const Workload timed = with(ranks, fmt::format("--steps {}", kLongestRound * rounds));
  const Workload learning =
      with(ranks, fmt::format("--dim 64 --depth 4 --steps {} --batch-size 16 --data teacher "
                              "--teacher-noise 0.1",
                              setting.quick ? 100 : 400));
  std::vector<Case> cases;
  for (const CaseRow& way : kLateWays) {
    cases.push_back(new_case(setting, way.key, with(timed, way.options)));
    cases.push_back(new_case(setting, learning_key(way.key), with(learning, way.options)));
  }
  return cases;
}

/// The mean of the last tenth of a run's losses: each is that of other samples.
double loss_at_end(const Measurement& measured) {
  const auto& losses = measured.starts().front().ranks.front().loss;
  return mean_of(std::span(losses).last(std::max<std::size_t>(losses.size() / 10, 1)));
}

Findings local_sgd_findings(const Results& results) {
  const auto loss_of = [&](const std::string& way) {
    return loss_at_end(results.at(learning_key(way)));
  };
  const auto against_ddp = [=](const std::string& way) {
    return factor_text(loss_of(way) / loss_of("ddp"));
  };
  std::vector<Compared> pairs;
  std::vector<std::string> keys, losses;
  for (const CaseRow& way : kLateWays) {
    keys.push_back(way.key);
    if (way.key == "ddp") continue;
    pairs.push_back({"ddp", way.key, way.words, "with ddp"});
    losses.push_back(fmt::format("{} {}", against_ddp(way.key), way.words));
  }
  return FindingsOf(results)
      .compare(pairs, {.as_family = false})
      .untimed("loss", fmt::format("The small model's loss at the end, against that with ddp: {}.",
                                   list_text(losses)))
      .table(several_words(compared_with_one(results.setting), "rank", true) +
                 " that hear of each other late or rarely",
             {"case",
              "time",
              speed_against("ddp", "speed against ddp"),
              "communication",
              "sends",
              {"loss of 64 x 4 at the end",
               [=](const Measurement& measured) {
                 return fmt::format("{:.4f}", loss_of(measured.what().key));
               }},
              {"against ddp's",
               [=](const Measurement& measured) { return against_ddp(measured.what().key); }}},
             keys);
}

}  // namespace

Experiment local_sgd_experiment() {
  return {"local-sgd",
          "Late gradients, and averages now and then",
          "What does it gain to apply gradients later, or to average weights every few steps only, "
          "and what does the loss pay?",
          local_sgd_cases,
          local_sgd_findings,
          "loss table",
          false};
}

}  // namespace barestep
