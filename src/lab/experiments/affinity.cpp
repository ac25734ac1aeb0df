// What it saves or costs to bind threads to cores: all cores of the machine, and half of them.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

/// With all cores each has a thread, compact or spread, as one thread has the same core either way.
/// GPUs have no such threads; there the process stays near its GPU.
std::vector<CaseRow> affinity_rows(const Setting& setting) {
  std::vector<CaseRow> rows = {{"none", "with all threads not bound", "--affinity none"},
                               {"compact", "with all threads bound compact", "--affinity compact"}};
  const int half = setting.units / 2;
  if (setting.on_gpu || half == 0) return rows;
  for (const Affinity affinity : kValuesOf<Affinity>) {
    if (affinity == Affinity::kSpread && half == 1) continue;
    const std::string_view name = name_of(affinity);
    rows.push_back(
        {fmt::format("half-{}", name),
         fmt::format("with {} {}", counted(half, "thread"),
                     affinity == Affinity::kNone ? "not bound" : fmt::format("bound {}", name)),
         fmt::format("--affinity {} --threads {}", name, half)});
  }
  return rows;
}

Findings affinity_findings(const Results& results) {
  std::vector<Compared> pairs;
  std::vector<std::string> labels;
  CaseRow unbound;
  for (const CaseRow& row : affinity_rows(results.setting)) {
    labels.push_back(row.words.substr(std::string_view("with ").size()));
    if (row.key.ends_with("none")) {
      unbound = row;
    } else {
      pairs.push_back({unbound.key, row.key, row.words, unbound.words});
    }
  }
  const auto label = [&](const Measurement& measured) {
    return labels.at(static_cast<std::size_t>(&measured - results.cases.data()));
  };
  FindingsOf all(results);
  all.compare(pairs);
  return all.table("Threads bound to cores", {{"case", label}, "time", "deviation"}).phases(labels);
}

}  // namespace

Experiment affinity_experiment() {
  return {"affinity",
          "Threads bound to cores",
          "Do threads that are bound to cores, next to each other or far apart, save time?",
          [](const Setting& setting) {
            return cases_of(setting, base_workload(setting), affinity_rows(setting));
          },
          affinity_findings,
          "table phases-plot"};
}

}  // namespace barestep
