// The parallel schemes on the same model and batch.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/units.h"
#include "lab/experiments/all.h"
#include "lab/findings.h"
#include "lab/prediction.h"
#include "lab/workload.h"

namespace barestep {
namespace {

constexpr std::array kRankSchemes = {RankScheme::kDdp, RankScheme::kZero1, RankScheme::kFactor};

std::vector<Case> schemes_cases(const Setting& setting) {
  std::vector<Case> cases = {new_case(setting, "one-rank", ddp_workload(setting, 1)),
                             new_case(setting, "data-parallel", dp_workload(setting, 2))};
  for (const RankScheme scheme : kRankSchemes) {
    Workload workload = ddp_workload(setting, 2);
    workload.config.parallel.scheme = scheme;
    cases.push_back(new_case(setting, std::string(name_of(scheme)), workload));
  }
  return cases;
}

/// Of the device or rank that needs most.
std::int64_t most_memory(const Measurement& each) {
  std::int64_t most = 0;
  for (const DeviceMemory& device : planned_memory(each.workload())) {
    most = std::max(most, device.bytes);
  }
  return most;
}

/// Where communication is fast and memory bandwidth decides.
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

Findings conclude_schemes(const Results& results) {
  const Measurement& one = results.at("one-rank");
  FindingTable table{.title = "Two devices or ranks, by scheme",
                     .columns = {"scheme", "step time", "against one rank", "exposed communication",
                                 "optimizer", "memory, at most"}};
  for (const Measurement& each : results.cases) {
    table.rows.push_back({each.what().key, time_text(each.step_s()),
                          factor_text(ratio(one.step_s(), each.step_s())),
                          time_text(each.phase_s("reduce")), time_text(each.phase_s("optimizer")),
                          human_bytes(most_memory(each))});
  }
  const auto fastest = std::min_element(
      results.cases.begin() + 1, results.cases.end(),
      [](const auto& a, const auto& b) { return a.step_s().median < b.step_s().median; });
  const auto smallest = std::min_element(
      results.cases.begin() + 1, results.cases.end(),
      [](const auto& a, const auto& b) { return most_memory(a) < most_memory(b); });
  const Estimate gain = ratio(one.step_s(), fastest->step_s());
  std::vector<std::string> labels;
  for (const Measurement& each : results.cases) labels.push_back(each.what().key);
  return {.sentences = {fmt::format(
                            "Of the schemes on two, {} is fastest: {} a step, {} as fast as "
                            "one rank{}.",
                            fastest->what().key, time_text(fastest->step_s()), factor_text(gain),
                            gain.high < 1 ? ", so none of them pays here" : ""),
                        fmt::format("{} needs least memory: {} on a rank at most, one rank alone "
                                    "needs {}.",
                                    smallest->what().key, human_bytes(most_memory(*smallest)),
                                    human_bytes(most_memory(one)))},
          .tables = {table, simulated_schemes()},
          .plots = {account_plot(results.cases, labels)}};
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
