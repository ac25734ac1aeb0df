// Who keeps what of a model's state, and who updates it: the parallel schemes on the same model and
// batch, and where parameter servers have their bottleneck.
#include <fmt/format.h>

#include <algorithm>

#include "core/units.h"
#include "lab/experiments/conclusion.h"

namespace barestep {
namespace {

/// Ranks that share one model and batch, without recomputation, which not every scheme can do.
Workload sharing_workload(const Setting& setting) {
  return with(ddp_workload(setting, compared_with_one(setting)), "--recompute 1");
}

std::vector<Case> sharding_cases(const Setting& setting) {
  Workload alone = sharing_workload(setting);
  alone.ranks = 1;
  const Workload devices = dp_workload(setting, compared_with_one(setting));
  const std::string tensor = fmt::format("--tensor {}", compared_with_one(setting));
  std::vector<Case> cases = {new_case(setting, "one-rank", alone),
                             new_case(setting, "data-parallel", with(devices, "--recompute 1"))};
  const std::vector<CaseRow> rows = {{"ddp"},
                                     {"zero1", "", "--scheme zero1"},
                                     {"zero2", "", "--scheme zero2"},
                                     {"zero3", "", "--scheme zero3"},
                                     {"server", "", "--scheme server"},
                                     {"factor", "", "--scheme factor"},
                                     {"tensor", "", tensor}};
  std::ranges::move(cases_of(setting, sharing_workload(setting), rows), std::back_inserter(cases));
  return cases;
}

Findings conclude_sharding(const Results& results) {
  const std::vector<std::string> keys = keys_of(results);
  const std::vector<std::string> schemes(keys.begin() + 1, keys.end());
  const std::string ranks = several_words(compared_with_one(results.setting), "rank");
  const auto bytes_of_case = [&](const std::string& key) {
    return max_rank_bytes(results.at(key).workload());
  };
  const std::string smallest = *std::ranges::min_element(schemes, {}, bytes_of_case);
  const double furthest = last_loss_difference(results.cases, results.at("ddp"));
  std::vector<Compared> pairs;
  for (const std::string& scheme : schemes) {
    pairs.push_back(
        {"one-rank", scheme, fmt::format("with {} on {}", scheme, ranks), "on one rank"});
  }
  Conclusion all(results);
  all.fastest(fmt::format("Fastest of the schemes on {}", ranks), schemes);
  all.compare(pairs)
      .fact("least-memory", fmt::format("Least memory: {}, {} on a rank at most (from the plan).",
                                        smallest, human_bytes(bytes_of_case(smallest))))
      .fact("losses", fmt::format("The last losses differ from ddp's by a share of {} at most: {}.",
                                  share_text(furthest),
                                  is_rounding(furthest) ? "all compute the same step"
                                                        : "not all compute the same step"));
  if (bytes_of_case("zero3") > bytes_of_case("zero1")) {
    all.fact("zero3-memory",
             fmt::format("zero3 has two whole layers and their gradients in memory beside its "
                         "share; with {} layers that is so much of the model that it needs more "
                         "than zero1.",
                         results.at("zero3").workload().depth()));
  }
  return all
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

// Parameter servers.

std::vector<Case> server_cases(const Setting& setting) {
  const Workload ranks = sharing_workload(setting);
  const std::vector<CaseRow> rows = {
      {"ddp"},
      {"star", "", "--scheme server"},
      {"tree", "", "--scheme server --server-reduce tree"},
      {"all-serve", "", fmt::format("--scheme server --servers {}", ranks.ranks)}};
  return cases_of(setting, ranks, rows);
}

/// What the books say that a link carries each way, as a multiple of the gradients' bytes.
double link_load(const std::string& key, int ranks) {
  const double others = ranks - 1;
  return key == "star" ? others : key == "tree" ? 1 : 2 * others / ranks;
}

Findings conclude_server(const Results& results) {
  const int ranks = compared_with_one(results.setting);
  const auto exposed_on = [](int rank) {
    return [=](const Measurement& each) { return time_text(each.phase_s("communication", rank)); };
  };
  return Conclusion(results)
      .compare({{"ddp", "star", "with one server that receives rank by rank", "with ddp"},
                {"star", "all-serve", "with every rank a server", "with one server"},
                {"star", "tree", "with reduce and broadcast", "with a star"}},
               {.as_family = false})
      .fact("links",
            fmt::format("With {} and one server its link carries {} times the gradients each way; "
                        "with every rank a server each link carries {:.3g} times, as in a ring "
                        "(calculated).",
                        several_words(ranks, "rank"), ranks - 1, link_load("all-serve", ranks)))
      .table(several_words(ranks, "rank", true) + " and their servers",
             {"case",
              "time",
              {"exposed communication, rank 0", exposed_on(0)},
              {fmt::format("rank {}", ranks - 1), exposed_on(ranks - 1)},
              {"busiest link, times the gradients' bytes",
               [=](const Measurement& each) {
                 return fmt::format("{:.3g} each way", link_load(each.what().key, ranks));
               }},
              "max-memory"})
      .phases_of_ranks()
      .simulated({2, 4, 8}, {"ranks", "case", {"time", "step"}});
}

}  // namespace

Experiment sharding_experiment() {
  return {
      .name = "sharding",
      .title = "Sharing a model's state",
      .question =
          "What do DataParallel, DDP, ZeRO 1 to 3, a parameter server, factors and tensor "
          "ranks cost in memory, bytes and time, and when is each the right one?",
      .cases = sharding_cases,
      .conclude = conclude_sharding,
      .names =
          "fastest least-memory losses zero3-memory simulated-* table simulated-table phases-plot",
      .needs_mpi = true};
}

Experiment server_experiment() {
  return {.name = "server",
          .title = "Parameter servers",
          .question = "Where is the bottleneck of a parameter server, and what removes it?",
          .cases = server_cases,
          .conclude = conclude_server,
          .names = "links simulated-* table simulated-table phases-plot",
          .needs_mpi = true};
}

}  // namespace barestep
