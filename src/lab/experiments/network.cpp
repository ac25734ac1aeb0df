// What a slow network costs, and what sends less over it: ways to train on several ranks, each
// beside its prediction from rates that were measured over the same network.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/units.h"
#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

constexpr int kRound = 8;  // steps

const std::vector<CaseRow>& ways() {
  static const std::vector<CaseRow> all = {
      {"ddp", "with ddp"},
      {"zero1", "with zero1", "--scheme zero1"},
      {"factor", "with factors in place of gradients", "--scheme factor"},
      {"every-8", "with averages every 8 steps", fmt::format("--sync-every {}", kRound)}};
  return all;
}

/// Whole rounds, since a run ends with an average.
std::vector<Case> network_cases(const Setting& setting) {
  const std::int64_t rounds = (setting.steps + kRound - 1) / kRound;
  const Workload ranks =
      with(ddp_workload(setting, compared_with_one(setting)),
           fmt::format("--recompute 1 --update separate --steps {}", kRound * (rounds + 1)));
  Workload alone = ranks;
  alone.ranks = 1;
  std::vector<Case> cases = {new_case(setting, "one-rank", alone)};
  std::ranges::move(cases_of(setting, ranks, ways()), std::back_inserter(cases));
  return cases;
}

std::string predicted_text(const CaseData& of) {
  const Results& results = *of.results();
  const std::vector<std::string> keys = keys_of(results);
  const auto number =
      static_cast<std::size_t>(std::ranges::find(keys, of.what().key) - keys.begin());
  const bool is_predicted = number < results.predictions.size() && results.predictions[number];
  return is_predicted ? time_text(results.predictions[number]->step_s) : std::string(kNotSimulated);
}

Findings network_findings(const Results& results) {
  const std::string ranks = several_words(compared_with_one(results.setting), "rank");
  std::vector<std::string> keys;
  std::vector<Compared> pairs;
  for (const CaseRow& way : ways()) {
    keys.push_back(way.key);
    if (way.key != "ddp") pairs.push_back({"ddp", way.key, way.words, "with ddp"});
  }
  FindingsOf all(results);
  all.fastest(fmt::format("Fastest on {}", ranks), keys);
  return all
      .compare({{"one-rank", "ddp", fmt::format("with ddp on {}", ranks), "on one rank"}},
               {.as_family = false})
      .compare(pairs)
      .table("What crosses the network, and what a step takes",
             {"case",
              "sends",
              "time",
              {"simulated", predicted_text},
              speed_against("ddp", "speed against ddp"),
              "communication"})
      .phases();
}

}  // namespace

Experiment network_experiment() {
  return {"network",
          "Steps on a network",
          "What does a step take over this network with whole gradients, shares, factors, or rare "
          "averages, and does the simulator know it?",
          network_cases,
          network_findings,
          "fastest table phases-plot"};
}

}  // namespace barestep
