// Who keeps what of a model's state, and who updates it: the parallel schemes on the same model and
// batch, with the ways of parameter servers.
#include <fmt/format.h>

#include <algorithm>

#include "core/units.h"
#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

/// Without recomputation, which not every scheme can do.
std::vector<Case> sharding_cases(const Setting& setting) {
  const int ranks = compared_with_one(setting);
  const Workload several = with(ddp_workload(setting, ranks), "--recompute 1");
  Workload alone = several;
  alone.ranks = 1;
  std::vector<Case> cases = {
      new_case(setting, "one-rank", alone),
      new_case(setting, "data-parallel", with(dp_workload(setting, ranks), "--recompute 1"))};
  const std::vector<CaseRow> rows = {
      {"ddp"},
      {"zero1", "", "--scheme zero1"},
      {"zero2", "", "--scheme zero2"},
      {"zero3", "", "--scheme zero3"},
      {"server", "", "--scheme server"},
      {"server-tree", "", "--scheme server --server-reduce tree"},
      {"all-serve", "", fmt::format("--scheme server --servers {}", ranks)},
      {"factor", "", "--scheme factor"},
      {"tensor", "", fmt::format("--tensor {}", ranks)}};
  std::ranges::move(cases_of(setting, several, rows), std::back_inserter(cases));
  return cases;
}

/// A scheme that shares more and needs more says why.
void add_memory(FindingsOf& all, const Results& results, const std::vector<std::string>& schemes) {
  const auto bytes_of = [&](const std::string& key) {
    return max_rank_bytes(results.at(key).workload());
  };
  const std::string smallest = *std::ranges::min_element(schemes, {}, bytes_of);
  all.untimed("least-memory", fmt::format("Least memory: {}, {} on a rank at most (from the plan).",
                                          smallest, human_bytes(bytes_of(smallest))));
  const std::int64_t layers = results.at("zero3").workload().depth();
  for (const auto& [key, needs] :
       {std::pair{"zero2", "the whole gradients of the buckets that are being reduced"},
        {"zero3", "two whole layers and their gradients"}}) {
    if (bytes_of(key) <= bytes_of("zero1")) continue;
    all.untimed(fmt::format("{}-memory", key),
                fmt::format("{} has {} in memory beside its share; with {} layers that is so much "
                            "of the model that it needs {}, more than zero1's {}.",
                            key, needs, layers, human_bytes(bytes_of(key)),
                            human_bytes(bytes_of("zero1"))));
  }
}

Findings sharding_findings(const Results& results) {
  const std::vector<std::string> keys = keys_of(results);
  const std::vector<std::string> schemes(keys.begin() + 1, keys.end());
  const int count = compared_with_one(results.setting);
  const std::string ranks = several_words(count, "rank");
  const double furthest = last_loss_difference(results.cases, results.at("ddp"));
  std::vector<Compared> pairs;
  for (const std::string& scheme : schemes) {
    pairs.push_back(
        {"one-rank", scheme, fmt::format("with {} on {}", scheme, ranks), "on one rank"});
  }
  FindingsOf all(results);
  all.fastest(fmt::format("Fastest of the schemes on {}", ranks), schemes);
  all.compare(pairs).compare(
      {{"server", "all-serve", "with every rank a server", "with one", "more-servers"},
       {"ddp", "tensor", "with every layer shared", "with the batch shared", "layers-shared"}},
      {.as_family = false});
  add_memory(all, results, schemes);
  return all
      .untimed("losses",
               fmt::format("The last losses differ from ddp's by a share of {} at most: {}.",
                           share_text(furthest),
                           is_rounding(furthest) ? "all compute the same step"
                                                 : "not all compute the same step"))
      .untimed("links", fmt::format("With {} and one server its link carries {} times the "
                                    "gradients each way, once in a tree; with every rank a server "
                                    "each link carries {:.3g} times, as in a ring (calculated).",
                                    ranks, count - 1, 2.0 * (count - 1) / count))
      .table("What each scheme costs", {{"case", "scheme"},
                                        "time",
                                        speed_against("one-rank", "speed against one rank"),
                                        "communication",
                                        "optimizer",
                                        "sends",
                                        "max-memory",
                                        "last-loss"})
      .phases()
      .simulated({4, 8}, {"ranks",
                          {"case", "scheme"},
                          {"time", "step"},
                          "speed-up",
                          "communication",
                          "max-memory"});
}

}  // namespace

Experiment sharding_experiment() {
  return {"sharding",
          "Sharing a model's state",
          "What do DataParallel, DDP, ZeRO 1 to 3, parameter servers, factors and tensor ranks "
          "cost in memory, bytes and time, and when is each the right one?",
          sharding_cases,
          sharding_findings,
          "fastest more-servers layers-shared least-memory zero2-memory zero3-memory losses links "
          "simulated-* "
          "table simulated-table phases-plot"};
}

}  // namespace barestep
