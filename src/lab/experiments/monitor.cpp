// The state of the machine during a run: utilization, memory, clock and power, by batch.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "core/statistics.h"
#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

/// Differences in utilization below this many points do not count.
constexpr double kMorePercent = 10;
/// Memory and clocks that change by less are called constant; the monitor uses the same limit for
/// clocks.
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

/// The readings of a gauge in a start; null if it has none.
const std::vector<double>* readings_in(const Start& start, const char* source, const char* gauge) {
  for (const Watched& watched : start.watched) {
    const auto found = watched.gauges.find(gauge);
    if (watched.source == source && found != watched.gauges.end() && !found->second.empty()) {
      return &found->second;
    }
  }
  return nullptr;
}

/// All readings of all starts.
std::vector<double> readings_of(const Measurement& each, const char* source, const char* gauge) {
  std::vector<double> all;
  for (const Start& start : each.starts()) {
    if (const auto* readings = readings_in(start, source, gauge)) {
      all.insert(all.end(), readings->begin(), readings->end());
    }
  }
  std::ranges::sort(all);
  return all;
}

/// The mean of a gauge by start; empty if a start has no reading.
std::vector<double> means_by_start(const Measurement& each, const char* source, const char* gauge) {
  std::vector<double> means;
  for (const Start& start : each.starts()) {
    const auto* const readings = readings_in(start, source, gauge);
    if (readings == nullptr) return {};
    means.push_back(std::accumulate(readings->begin(), readings->end(), 0.0) /
                    static_cast<double>(readings->size()));
  }
  return means;
}

/// A gauge: the mean as a figure of the starts, and the ends over all readings; without readings,
/// the other members are meaningless.
struct Level {
  bool is_known = false;
  double mean = 0, min = 0, max = 0;
};

Level level_of(const Measurement& each, const char* source, const char* gauge) {
  const std::vector<double> means = means_by_start(each, source, gauge);
  if (means.empty()) return {};
  const std::vector<double> readings = readings_of(each, source, gauge);
  return {true, estimate_of(means).median, readings.front(), readings.back()};
}

/// Joules per sample by start; empty if a start has no reading.
std::vector<double> joules_by_start(const Measurement& each) {
  std::vector<double> all;
  for (const Start& start : each.starts()) {
    for (const Watched& watched : start.watched) {
      if (watched.energy_j_per_sample) all.push_back(*watched.energy_j_per_sample);
    }
  }
  if (all.size() != each.starts().size()) all.clear();
  return all;
}

std::string batch_text(const Measurement& each) {
  return fmt::format("batch {}", each.workload().batch_size());
}

/// What a gauge does from the smallest batch to the largest; `limit` above which a change counts.
template <class Change>
Finding change_of(const Results& results, const char* name, const char* source, const char* gauge,
                  const Change& change, double limit, const char* grows, const char* unit) {
  const Measurement &small = results.cases.front(), &large = results.cases.back();
  const std::vector<double> a = means_by_start(small, source, gauge);
  const std::vector<double> b = means_by_start(large, source, gauge);
  if (a.empty() || b.empty()) return {name, fmt::format("Whether {} cannot be read here.", grows)};
  const Word side = side_of(estimate_by_round(b, a, change), limit);
  return {name,
          fmt::format("{}: {:.0f} {} at {}, {:.0f} {} at {}.",
                      by_side(side, fmt::format("It is seen that {}", grows),
                              fmt::format("It is not seen that {}", grows),
                              fmt::format("Whether {} is unclear", grows)),
                      estimate_of(a).median, unit, batch_text(small), estimate_of(b).median, unit,
                      batch_text(large)),
          side};
}

std::string clock_sentence(const Results& results, const GaugeNames& names) {
  Level all;
  for (const Measurement& each : results.cases) {
    const Level level = level_of(each, names.source, names.clock);
    if (!level.is_known) continue;
    all.min = all.is_known ? std::min(all.min, level.min) : level.min;
    all.max = std::max(all.max, level.max);
    all.is_known = true;
  }
  if (!all.is_known) return "The clock cannot be read here.";
  return fmt::format(
      "The clock was {}: {:.0f} to {:.0f} MHz, so times measured at different "
      "moments may differ by {}.",
      all.max <= kSteadyShare * all.min ? "steady" : "not steady", all.min, all.max,
      percent_text(all.max / all.min - 1));
}

std::string energy_sentence(FindingsOf& all, const Results& results) {
  std::vector<Series> energy;
  std::vector<std::string> names;
  for (const Measurement& each : results.cases) {
    std::vector<double> joules = joules_by_start(each);
    if (joules.empty()) continue;
    names.push_back(
        fmt::format("{}, {} mJ", batch_text(each), number_text(1e3 * estimate_of(joules).median)));
    energy.push_back({"energy, " + each.what().key, std::move(joules)});
  }
  if (energy.empty()) return "No power is reported here, so energy is not known.";
  const Fastest min = fastest_of(energy, results.setting.margin);
  all.keep(min.others);
  return fastest_sentence(min, names, "Least energy per sample");
}

std::string level_text(const Level& level, const char* unit) {
  if (!level.is_known) return "-";
  return fmt::format("{:.0f} {} ({:.0f} to {:.0f})", level.mean, unit, level.min, level.max);
}

std::vector<std::string> marks_of(const Results& results) {
  std::set<std::string> marks;
  for (const Measurement& each : results.cases) {
    for (const Start& start : each.starts()) {
      for (const Watched& watched : start.watched) {
        marks.insert(watched.marks.begin(), watched.marks.end());
      }
    }
  }
  return {marks.begin(), marks.end()};
}

PlotSeries busy_points(const Results& results, const GaugeNames& names) {
  PlotSeries busy{.name = results.setting.on_gpu ? "GPU busy" : "cores busy by this run"};
  for (const Measurement& each : results.cases) {
    const std::vector<double> means = means_by_start(each, names.source, names.busy);
    if (!means.empty()) busy.points.push_back(plot_point(batch_of(each), estimate_of(means)));
  }
  return busy;
}

Findings monitor_findings(const Results& results) {
  const GaugeNames names = gauge_names(results.setting.on_gpu);
  const auto level = [&](std::string title, const char* gauge, const char* unit) -> Column {
    return {std::move(title), [=](const Measurement& each) {
              return level_text(level_of(each, names.source, gauge), unit);
            }};
  };
  FindingsOf all(results);
  const Finding busy =
      change_of(results, "busy", names.source, names.busy, std::minus<double>(), kMorePercent,
                "a larger batch keeps the device busier by 10 percentage points", "%");
  const Finding memory =
      change_of(results, "memory", names.source, names.memory, std::divides<double>(), kSteadyShare,
                "memory grows with the batch", "MiB");
  all.timed(busy.name, busy.text, busy.word).fact(memory.name, memory.text, memory.word);
  all.timed("energy", energy_sentence(all, results)).fact("clock", clock_sentence(results, names));
  if (const std::vector<std::string> marks = marks_of(results); !marks.empty()) {
    all.fact("mark", fmt::format("Read these figures with care: {}.", list_text(marks)));
  }
  return all
      .table("The machine during the steady steps: mean (lowest to highest)",
             {"batch",
              "samples-per-s",
              level("busy", names.busy, "%"),
              level("memory", names.memory, "MiB"),
              level("clock", names.clock, "MHz"),
              level("power", "power_w", "W"),
              {"energy of a sample",
               [](const Measurement& each) -> std::string {
                 const std::vector<double> joules = joules_by_start(each);
                 if (joules.empty()) return "-";
                 return fmt::format("{} mJ", number_text(1e3 * estimate_of(joules).median));
               }}})
      .plot({.title = "Utilization against the batch, with the ends of its interval",
             .x_label = "batch size",
             .y_label = "%",
             .log_x = true,
             .series = {busy_points(results, names)}});
}

}  // namespace

Experiment monitor_experiment() {
  return {
      "monitor",
      "The machine during a run",
      "How busy is the device, how much memory does it use, are its clock and power steady, and "
      "what does a larger batch change?",
      monitor_cases,
      monitor_findings,
      "busy energy memory clock mark table plot"};
}

}  // namespace barestep
