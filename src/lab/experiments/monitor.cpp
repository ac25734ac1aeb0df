// The state of the machine during a run: utilization, memory, clock and power, by batch.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "core/statistics.h"
#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

/// Differences in utilization below this many points do not count.
constexpr double kMorePercent = 10;
/// Memory that changes by less is called constant.
constexpr double kSteadyShare = 1.02;

/// The source of a device's gauges: a GPU has its own, the CPU uses the host's.
struct GaugeNames {
  const char* source;
  const char* busy;  // by this run, on the CPU
  const char* memory;
  const char* clock;
};

GaugeNames gauge_names(bool on_gpu) {
  if (on_gpu) return {"cuda:0", "gpu_percent", "memory_mib", "sm_clock_mhz"};
  return {"host", "own_percent", "resident_mib", "clock_mhz"};
}

/// Each case trains about the same number of samples, and long enough to be sampled.
std::vector<Case> monitor_cases(const Setting& setting) {
  const std::int64_t samples = setting.on_gpu ? 25'600 : setting.quick ? 6'400 : 5'120;
  std::vector<Case> cases;
  for (const std::int64_t batch : {16, 64, 256}) {
    if (setting.quick && batch == 64) continue;
    Workload workload = base_workload(setting);
    workload.config.data.batch_size = batch;
    workload.config.training.steps = std::max(setting.steps, samples / batch);
    workload.config.output.monitor = true;
    cases.push_back(new_case(setting, fmt::format("batch-{}", batch), workload));
  }
  return cases;
}

/// A gauge of a case: its mean by start, and its ends in all of them. Without means if a start has
/// no reading.
struct CaseLevel {
  std::vector<double> means{};
  double least = std::numeric_limits<double>::infinity(), most = -least;
};

CaseLevel level_of(const Measurement& measured, const char* source, const char* gauge) {
  CaseLevel level;
  for (const Start& start : measured.starts()) {
    const auto watched = std::ranges::find(start.watched, source, &Watched::source);
    if (watched == start.watched.end() || !watched->gauges.contains(gauge)) return {};
    const GaugeLevel& of_start = watched->gauges.at(gauge);
    level.means.push_back(of_start.mean);
    level.least = std::min(level.least, of_start.least);
    level.most = std::max(level.most, of_start.most);
  }
  return level;
}

/// Joules per sample by start; empty if a start has no reading.
std::vector<double> joules_by_start(const Measurement& measured) {
  std::vector<double> all;
  for (const Start& start : measured.starts()) {
    for (const Watched& watched : start.watched) {
      if (watched.energy_j_per_sample) all.push_back(*watched.energy_j_per_sample);
    }
  }
  if (all.size() != measured.starts().size()) all.clear();
  return all;
}

std::string batch_text(const Measurement& measured) {
  return fmt::format("batch {}", measured.workload().batch_size());
}

/// What a gauge does from the smallest batch to the largest.
struct Growth {
  const char *name, *gauge, *unit;
  const char* words;
  double limit;  // above which a change counts
};

template <class Change>
Finding change_of(const Results& results, const char* source, const Growth& of,
                  const Change& change) {
  const Measurement &small = results.cases.front(), &large = results.cases.back();
  const std::vector<double> a = level_of(small, source, of.gauge).means;
  const std::vector<double> b = level_of(large, source, of.gauge).means;
  if (a.empty() || b.empty()) {
    return {of.name, fmt::format("Whether {} cannot be read here.", of.words)};
  }
  const Word side = side_of(estimate_by_round(b, a, change), of.limit);
  return {of.name,
          fmt::format("{}: {:.0f} {} at {}, {:.0f} {} at {}.",
                      by_side(side, fmt::format("It is seen that {}", of.words),
                              fmt::format("It is not seen that {}", of.words),
                              fmt::format("Whether {} is unclear", of.words)),
                      estimate_of(a).median, of.unit, batch_text(small), estimate_of(b).median,
                      of.unit, batch_text(large)),
          side};
}

std::string energy_of(const std::vector<double>& joules) {
  return fmt::format("{} mJ", number_text(1e3 * estimate_of(joules).median));
}

std::string energy_text(FindingsOf& all, const Results& results) {
  std::vector<Series> energy;
  std::vector<std::string> names;
  for (const Measurement& measured : results.cases) {
    std::vector<double> joules = joules_by_start(measured);
    if (joules.empty()) continue;
    names.push_back(fmt::format("{}, {}", batch_text(measured), energy_of(joules)));
    energy.push_back({"energy, " + measured.what().key, std::move(joules)});
  }
  if (energy.empty()) return "No power is reported here, so energy is not known.";
  const Fastest min = fastest_of(energy, results.setting.margin);
  all.keep(min.others);
  return fastest_text(min, names, "Least energy per sample");
}

std::vector<std::string> marks_of(const Results& results) {
  std::set<std::string> marks;
  for (const Measurement& measured : results.cases) {
    for (const Start& start : measured.starts()) {
      for (const Watched& watched : start.watched) {
        marks.insert(watched.marks.begin(), watched.marks.end());
      }
    }
  }
  return {marks.begin(), marks.end()};
}

Findings monitor_findings(const Results& results) {
  const GaugeNames names = gauge_names(results.setting.on_gpu);
  const auto level = [&](std::string title, const char* gauge, const char* unit) -> Column {
    return {std::move(title), [=](const Measurement& measured) -> std::string {
              const CaseLevel of = level_of(measured, names.source, gauge);
              if (of.means.empty()) return "-";
              return fmt::format("{:.0f} {} ({:.0f} to {:.0f})", estimate_of(of.means).median, unit,
                                 of.least, of.most);
            }};
  };
  FindingsOf all(results);
  const Finding busy =
      change_of(results, names.source,
                {"busy", names.busy, "%",
                 "a larger batch keeps the device busier by 10 percentage points", kMorePercent},
                std::minus<double>());
  const Finding memory =
      change_of(results, names.source,
                {"memory", names.memory, "MiB", "memory grows with the batch", kSteadyShare},
                std::divides<double>());
  all.timed(busy.name, busy.text, busy.word).untimed(memory.name, memory.text, memory.word);
  all.timed("energy", energy_text(all, results));
  if (const std::vector<std::string> marks = marks_of(results); !marks.empty()) {
    all.untimed("mark", fmt::format("Read these figures with care: {}.", list_text(marks)));
  }
  return all.table("The machine during the steady steps: mean (lowest to highest)",
                   {"batch",
                    "samples-per-s",
                    level("busy", names.busy, "%"),
                    level("memory", names.memory, "MiB"),
                    level("clock", names.clock, "MHz"),
                    level("power", "power_w", "W"),
                    {"energy of a sample", [](const Measurement& measured) {
                       const std::vector<double> joules = joules_by_start(measured);
                       return joules.empty() ? "-" : energy_of(joules);
                     }}});
}

}  // namespace

Experiment monitor_experiment() {
  return {"monitor",
          "The machine during a run",
          "How busy is the device, how much memory does it use, are its clock and power steady, "
          "and what does a larger batch change?",
          monitor_cases,
          monitor_findings,
          "busy energy memory mark table"};
}

}  // namespace barestep
