// Compares the parallel schemes on the same model and batch.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/units.h"
#include "lab/experiments/all.h"
#include "lab/predict/prediction.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

constexpr std::array kRankSchemes = {RankScheme::kDdp, RankScheme::kZero1, RankScheme::kFactor};

std::vector<Case> schemes_cases(const Setting& setting) {
  std::vector<Case> cases = {
      new_case(setting, "one-rank", ddp_workload(setting, 1)),
      new_case(setting, "data-parallel", dp_workload(setting, compared_with_one(setting)))};
  for (const RankScheme scheme : kRankSchemes) {
    Workload workload = ddp_workload(setting, compared_with_one(setting));
    workload.config.parallel.scheme = scheme;
    cases.push_back(new_case(setting, std::string(name_of(scheme)), workload));
  }
  return cases;
}

/// The memory of the device or rank that needs the most.
std::int64_t most_memory(const Measurement& each) {
  std::int64_t max = 0;
  for (const DeviceMemory& device : planned_memory(each.workload())) {
    max = std::max(max, device.bytes);
  }
  return max;
}

/// On a machine with fast communication, where memory bandwidth decides.
FindingTable simulated_schemes() {
  const MachineCard card = load_card("h200-nvlink");
  FindingTable table{
      .title = fmt::format("Simulated: step times of 8192 x 6, batch 64, on {}", card.name),
      .columns = {"ranks"}};
  for (const RankScheme scheme : kRankSchemes) table.columns.emplace_back(name_of(scheme));
  for (const int ranks : {1, 2, 4, 8}) {
    std::vector<std::string> row = {std::to_string(ranks)};
    for (const RankScheme scheme : kRankSchemes) {
      row.push_back(time_text(predicted_step({.scheme = scheme}, card, ranks).step_s));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string memory_sentence(const Results& results) {
  std::int64_t min = most_memory(results.cases[1]);
  for (std::size_t i = 2; i < results.cases.size(); ++i) {
    min = std::min(min, most_memory(results.cases[i]));
  }
  std::vector<std::string> smallest;
  for (std::size_t i = 1; i < results.cases.size(); ++i) {
    if (most_memory(results.cases[i]) == min) smallest.push_back(results.cases[i].what().key);
  }
  return fmt::format(
      "Least memory: {}, {} on a device at most; one rank alone needs {} (from the plan).",
      list_text(smallest), human_bytes(min), human_bytes(most_memory(results.at("one-rank"))));
}

Findings conclude_schemes(const Results& results) {
  const int count = compared_with_one(results.setting);
  const std::string several = count == 2 ? "two" : std::to_string(count);
  const std::vector<std::string> labels = keys_of(results);
  const std::vector<std::string> schemes(labels.begin() + 1, labels.end());
  const std::vector<Comparison> gains = results.compare("one-rank", schemes);
  const Fastest fastest = fastest_of(results.steps_of(schemes), results.setting.margin);
  FindingTable table{
      .title = fmt::format("{} or ranks, by scheme", several_words(count, "device", true)),
      .columns = {"scheme", "mean step", "speed against one rank", "exposed communication",
                  "optimizer", "memory, at most"}};
  for (const Measurement& each : results.cases) {
    table.rows.push_back({each.what().key, time_text(each.mean_s()),
                          factor_text(results.compare("one-rank", each.what().key).speed()),
                          time_text(each.phase_s("communication")),
                          time_text(each.phase_s("optimizer")), human_bytes(most_memory(each))});
  }
  std::vector<std::string> sentences = {fastest_sentence(
      fastest, schemes, fmt::format("Fastest of the schemes on {} devices", several))};
  for (const Comparison& each : gains) {
    sentences.push_back(sentence_of(each,
                                    fmt::format("with {} on {} {}", each.b, several,
                                                each.b == "data-parallel" ? "devices" : "ranks"),
                                    "on one rank"));
  }
  Findings findings{.sentences = std::move(sentences),
                    .facts = {memory_sentence(results)},
                    .comparisons = gains,
                    .tables = {table, simulated_schemes()},
                    .plots = {account_plot(results.cases, labels)}};
  keep(findings, fastest.others);
  return findings;
}

}  // namespace

Experiment schemes_experiment() {
  return {.name = "schemes",
          .title = "Parallel schemes",
          .question =
              "DataParallel, DDP, ZeRO-1 and factor gathering on the same numbers: which is "
              "fastest, and which needs least memory?",
          .cases = schemes_cases,
          .conclude = conclude_schemes,
          .needs_mpi = true};
}

}  // namespace barestep
