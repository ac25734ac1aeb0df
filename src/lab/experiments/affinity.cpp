// What it saves or costs to bind threads to cores: all cores of the machine, and half of them.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lab/experiments/figures.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

constexpr const char* kHalf = "half-";

bool is_half(const std::string& key) {
  return key.starts_with(kHalf);
}

/// With all cores each has a thread, compact or spread, as one thread has the same core either way.
/// GPUs have no such threads; there the process stays near its GPU.
std::vector<Case> affinity_cases(const Setting& setting) {
  Workload workload = base_workload(setting);
  std::vector<Case> cases;
  const auto add = [&](const std::string& group, Affinity affinity) {
    workload.config.device.affinity = affinity;
    cases.push_back(new_case(setting, group + std::string(name_of(affinity)), workload));
  };
  add("", Affinity::kNone);
  add("", Affinity::kCompact);
  if (setting.on_gpu || setting.units < 2) return cases;
  workload.config.device.threads = setting.units / 2;
  for (const Affinity affinity : kValuesOf<Affinity>) {
    if (affinity != Affinity::kSpread || setting.units / 2 > 1) add(kHalf, affinity);
  }
  return cases;
}

std::string words_of(const Measurement& each) {
  const DeviceConfig& device = each.workload().config.device;
  const std::string threads =
      is_half(each.what().key) ? counted(*device.threads, "thread") : "all threads";
  if (device.affinity == Affinity::kNone) return threads + " not bound";
  return fmt::format("{} bound {}", threads, name_of(device.affinity));
}

/// What all comparisons say together.
std::string affinity_answer(const std::vector<Comparison>& all) {
  if (const std::string few = too_few_of(all); !few.empty()) {
    return fmt::format("Whether binding threads to cores saves or costs time here: {}.", few);
  }
  const bool saves = std::ranges::any_of(all, &Comparison::is_faster);
  const bool costs = std::ranges::any_of(all, &Comparison::is_slower);
  if (saves && costs) {
    return "Binding threads to cores saves time here in some cases, and costs time in others.";
  }
  if (saves) return "Binding threads to cores saves time here.";
  if (costs) return "Binding threads to cores costs time here.";
  const bool is_equal = std::ranges::all_of(
      all, [](const Comparison& each) { return each.word == Word::kNoDifference; });
  return is_equal ? fmt::format("Binding threads to cores makes no difference beyond {} here.",
                                chosen_percent(all.front().margin - 1))
                  : "Whether binding threads to cores saves or costs time here is unclear.";
}

Findings conclude_affinity(const Results& results) {
  std::vector<Comparison> all;
  for (const Measurement& each : results.cases) {
    const std::string& key = each.what().key;
    if (each.workload().config.device.affinity == Affinity::kNone) continue;
    all.push_back(results.compare(is_half(key) ? "half-none" : "none", key));
  }
  adjust_together(all);
  Findings findings{.sentences = {{"binding", affinity_answer(all)}},
                    .tables = {{.title = "Threads bound to cores",
                                .columns = {"case", "mean step", "deviation of steps"}}}};
  for (const Comparison& each : all) {
    findings.sentences.push_back({each.b,
                                  sentence_of(each, "with " + words_of(results.at(each.b)),
                                              "with " + words_of(results.at(each.a))),
                                  each.word});
  }
  std::vector<std::string> labels;
  for (const Measurement& each : results.cases) {
    labels.push_back(words_of(each));
    findings.tables.front().rows.push_back(
        {words_of(each), time_text(each.mean_s()), deviation_text(each)});
  }
  findings.plots = {account_plot(results.cases, labels)};
  keep(findings, all);
  return findings;
}

}  // namespace

Experiment affinity_experiment() {
  return {
      .name = "affinity",
      .title = "Threads bound to cores",
      .question = "Do threads that are bound to cores, next to each other or far apart, save time?",
      .cases = affinity_cases,
      .conclude = conclude_affinity,
      .names = "binding table phases-plot"};
}

}  // namespace barestep
