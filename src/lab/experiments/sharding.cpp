// Who keeps what of a model's state, and who updates it: the parallel schemes on the same model and
// batch, and where parameter servers have their bottleneck.
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

// Schemes side by side.

constexpr std::array kSharingSchemes = {RankScheme::kDdp,    RankScheme::kZero1,
                                        RankScheme::kZero2,  RankScheme::kZero3,
                                        RankScheme::kServer, RankScheme::kFactor};
constexpr const char *kDataParallelCase = "data-parallel", *kTensorCase = "tensor";

std::vector<Case> sharding_cases(const Setting& setting) {
  Workload alone = sharing_workload(setting);
  alone.ranks = 1;
  Workload devices = dp_workload(setting, compared_with_one(setting));
  devices.config.training.recompute = 1;
  std::vector<Case> cases = {new_case(setting, "one-rank", alone),
                             new_case(setting, kDataParallelCase, devices)};
  for (const RankScheme scheme : kSharingSchemes) {
    Workload workload = sharing_workload(setting);
    workload.config.parallel.scheme = scheme;
    cases.push_back(new_case(setting, std::string(name_of(scheme)), workload));
  }
  Workload tensor = sharing_workload(setting);
  tensor.config.parallel.tensor = tensor.ranks;
  cases.push_back(new_case(setting, kTensorCase, tensor));
  return cases;
}

/// A scheme on a machine that is not here.
struct SimulatedSharing {
  std::string name;
  double step_s = 0;
  std::int64_t bytes = 0;  // of the rank that needs most
};

std::vector<SimulatedSharing> simulated_sharing(const MachineCard& card, int ranks) {
  std::vector<SimulatedSharing> all;
  const auto add = [&](std::string_view name, std::string_view scheme) {
    const Run run = run_on(asked_run({{"scheme", std::string(scheme)}}), card, ranks);
    all.push_back({std::string(name), predicted_run(run, card).step_s, max_rank_bytes(run)});
  };
  for (const RankScheme scheme : kSharingSchemes) add(name_of(scheme), name_of(scheme));
  add(kTensorCase, "tensor");
  return all;
}

/// Which is the right one, from the simulated figures.
std::string choice_text(const MachineCard& card, int ranks,
                        const std::vector<SimulatedSharing>& all) {
  const auto fastest = std::ranges::min_element(all, {}, &SimulatedSharing::step_s);
  const auto smallest = std::ranges::min_element(all, {}, &SimulatedSharing::bytes);
  std::string text = fmt::format(
      "Simulated: 8192 x 6 at batch 64 on {} of {}: where memory suffices, {} is the right one, {} "
      "a step and {} on a rank; where it does not, {} needs least, {}, and takes {}.",
      ranks, card.name, fastest->name, time_text(fastest->step_s), human_bytes(fastest->bytes),
      smallest->name, human_bytes(smallest->bytes), time_text(smallest->step_s));
  // Of those that divide the batch only: the layers need not be cut.
  const auto& zero = *std::ranges::find(all, name_of(RankScheme::kZero3), &SimulatedSharing::name);
  const auto& ddp = *std::ranges::find(all, name_of(RankScheme::kDdp), &SimulatedSharing::name);
  return text + fmt::format(
                    " Without cutting layers, zero3 needs {} instead of ddp's {}, for {} "
                    "its time.",
                    human_bytes(zero.bytes), human_bytes(ddp.bytes),
                    factor_text(zero.step_s / ddp.step_s));
}

void add_simulated_sharing(Findings& findings) {
  const MachineCard card = load_card("h200-nvlink");
  FindingTable table{.title = fmt::format("Simulated: 8192 x 6, batch 64, on {}", card.name),
                     .name = "simulated-table",
                     .columns = {"scheme", "4 ranks, step", "4 ranks, memory", "8 ranks, step",
                                 "8 ranks, memory"}};
  for (const int ranks : {4, 8}) {
    const std::vector<SimulatedSharing> all = simulated_sharing(card, ranks);
    table.rows.resize(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (table.rows[i].empty()) table.rows[i] = {all[i].name};
      table.rows[i].push_back(time_text(all[i].step_s));
      table.rows[i].push_back(human_bytes(all[i].bytes));
    }
    findings.facts.push_back({fmt::format("simulated-{}", ranks), choice_text(card, ranks, all)});
  }
  findings.tables.push_back(std::move(table));
}

Findings conclude_sharding(const Results& results) {
  const std::vector<std::string> labels = keys_of(results);
  const std::vector<std::string> schemes(labels.begin() + 1, labels.end());
  const Fastest fastest = fastest_of(results.steps_of(schemes), results.setting.margin);
  const std::string ranks = several_words(compared_with_one(results.setting), "rank");
  FindingTable table{
      .title = "What each scheme costs",
      .columns = {"scheme", "mean step", "speed against one rank", "exposed communication",
                  "optimizer", "a rank sends", "memory of a rank, at most", "last loss"}};
  std::string smallest;
  std::int64_t least = 0;
  for (const Measurement& each : results.cases) {
    const std::string& key = each.what().key;
    const std::int64_t bytes = max_rank_bytes(each.workload());
    table.rows.push_back(
        {key, time_text(each.mean_s()), factor_text(results.compare("one-rank", key).speed()),
         time_text(each.phase_s("communication")), time_text(each.phase_s("optimizer")),
         key == kDataParallelCase ? "" : human_bytes(mean_sent_bytes(each.workload())),
         human_bytes(bytes), fmt::format("{:.6f}", last_loss(each))});
    if (key != "one-rank" && (least == 0 || bytes < least)) {
      least = bytes;
      smallest = key;
    }
  }
  const double furthest = last_loss_difference(results.cases, results.at("ddp"));
  Findings findings{
      .sentences = {{"fastest",
                     fastest_sentence(fastest, schemes,
                                      fmt::format("Fastest of the schemes on {}", ranks))}},
      .facts = {{"least-memory", fmt::format("Least memory: {}, {} on a rank at most (from the "
                                             "plan).",
                                             smallest, human_bytes(least))},
                {"losses",
                 fmt::format("The last losses differ from ddp's by a share of {:.1e} at most: {}.",
                             furthest,
                             is_rounding(furthest) ? "all compute the same step"
                                                   : "not all compute the same step")}},
      .tables = {table},
      .plots = {account_plot(results.cases, labels)}};
  const auto bytes_of_case = [&](const char* key) {
    return max_rank_bytes(results.at(key).workload());
  };
  if (bytes_of_case("zero3") > bytes_of_case("zero1")) {
    findings.facts.push_back(
        {"zero3-memory",
         fmt::format("zero3 has two whole layers and their gradients in memory beside its share; "
                     "with {} layers that is so much of the model that it needs more than zero1.",
                     results.at("zero3").workload().depth())});
  }
  const std::vector<Comparison> gains = results.compare("one-rank", schemes);
  for (const Comparison& each : gains) {
    findings.sentences.push_back(
        {each.b, sentence_of(each, fmt::format("with {} on {}", each.b, ranks), "on one rank"),
         each.word});
  }
  keep(findings, gains);
  keep(findings, fastest.others);
  add_simulated_sharing(findings);
  return findings;
}

// Parameter servers.

Workload server_workload(Workload workload, std::int64_t servers, ServerReduce reduce) {
  workload.config.parallel.scheme = RankScheme::kServer;
  workload.config.parallel.servers = servers;
  workload.config.parallel.server_reduce = reduce;
  return workload;
}

std::vector<Case> server_cases(const Setting& setting) {
  const Workload ddp = sharing_workload(setting);
  return {new_case(setting, "ddp", ddp),
          new_case(setting, "star", server_workload(ddp, 1, ServerReduce::kStar)),
          new_case(setting, "tree", server_workload(ddp, 1, ServerReduce::kTree)),
          new_case(setting, "all-serve", server_workload(ddp, ddp.ranks, ServerReduce::kStar))};
}

/// What the books say that a link carries each way, as a multiple of the gradients' bytes.
double link_load(const std::string& key, int ranks) {
  const double others = ranks - 1;
  return key == "star" ? others : key == "tree" ? 1 : 2 * others / ranks;
}

void add_simulated_servers(Findings& findings) {
  const MachineCard card = load_card("h200-nvlink");
  FindingTable table{
      .title = fmt::format("Simulated: step times of 8192 x 6, batch 64, on {}", card.name),
      .name = "simulated-table",
      .columns = {"ranks", "ddp, a ring", "one server, star", "every rank a server"}};
  for (const int ranks : {2, 4, 8}) {
    const Workload ddp{run_on({}, card, ranks)};
    const auto time = [&](const Workload& workload) {
      return time_text(predicted_run(workload, card).step_s);
    };
    table.rows.push_back({std::to_string(ranks), time(ddp),
                          time(server_workload(ddp, 1, ServerReduce::kStar)),
                          time(server_workload(ddp, ranks, ServerReduce::kStar))});
  }
  findings.tables.push_back(std::move(table));
}

Findings conclude_server(const Results& results) {
  const std::vector<std::string> labels = keys_of(results);
  const int ranks = compared_with_one(results.setting);
  FindingTable table{
      .title = several_words(ranks, "rank", true) + " and their servers",
      .columns = {"case", "mean step", "exposed communication, rank 0",
                  fmt::format("rank {}", ranks - 1), "busiest link, times the gradients' bytes",
                  "memory of a rank, at most"}};
  for (const Measurement& each : results.cases) {
    table.rows.push_back({each.what().key, time_text(each.mean_s()),
                          time_text(each.phase_s("communication", 0)),
                          time_text(each.phase_s("communication", ranks - 1)),
                          fmt::format("{:.3g} each way", link_load(each.what().key, ranks)),
                          human_bytes(max_rank_bytes(each.workload()))});
  }
  const std::array compared = {results.compare("ddp", "star"), results.compare("star", "all-serve"),
                               results.compare("star", "tree")};
  Findings findings{
      .sentences = {{"star",
                     sentence_of(compared[0], "with one server that receives rank by rank",
                                 "with ddp"),
                     compared[0].word},
                    {"all-serve",
                     sentence_of(compared[1], "with every rank a server", "with one server"),
                     compared[1].word},
                    {"tree", sentence_of(compared[2], "with reduce and broadcast", "with a star"),
                     compared[2].word}},
      .facts = {{"links",
                 fmt::format("With {} and one server its link carries {} times the gradients each "
                             "way; with every rank a server each link carries {:.3g} times, as in "
                             "a ring (calculated).",
                             several_words(ranks, "rank"), ranks - 1,
                             link_load("all-serve", ranks))}},
      .tables = {table},
      .plots = {ranks_plot(results.cases, labels)}};
  keep(findings, compared);
  add_simulated_servers(findings);
  return findings;
}

}  // namespace

Experiment sharding_experiment() {
  return {.name = "sharding",
          .title = "Sharing a model's state",
          .question =
              "What do DataParallel, DDP, ZeRO 1 to 3, a parameter server, factors and tensor "
              "ranks cost in memory, bytes and time, and when is each the right one?",
          .cases = sharding_cases,
          .conclude = conclude_sharding,
          .names =
              "fastest least-memory losses zero3-memory simulated-* table "
              "simulated-table phases-plot",
          .needs_mpi = true};
}

Experiment server_experiment() {
  return {.name = "server",
          .title = "Parameter servers",
          .question = "Where is the bottleneck of a parameter server, and what removes it?",
          .cases = server_cases,
          .conclude = conclude_server,
          .names = "links table simulated-table phases-plot",
          .needs_mpi = true};
}

}  // namespace barestep
