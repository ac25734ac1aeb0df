// The ways to need less memory that a lecture of the course (docs/lab.md) lists, each added to the
// ones before: what each saves and what it costs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"
#include "lab/experiments/all.h"
#include "lab/findings.h"
#include "lab/workload.h"

namespace barestep {
namespace {

struct MemoryRung {
  std::string_view key;
  std::string_view words;
};
constexpr std::array<MemoryRung, 5> kMemoryRungs = {
    {{"baseline", "nothing"},
     {"precision", "16-bit numbers"},
     {"accumulation", "4 micro-steps"},
     {"recompute", "recomputation"},
     {"sharding", "an optimizer sharded over two ranks"}}};
constexpr std::int64_t kMicroSteps = 4;
constexpr int kShards = 2;

/// Each device gets a batch of the same size, also if there are several devices.
std::vector<Case> memory_cases(const Setting& setting) {
  constexpr std::int64_t kMinLayers = 8;
  const std::int64_t batch = std::max(setting.batch_size, setting.quick ? 256L : 1024L);
  Workload workload = base_workload(setting);
  const std::int64_t layers = std::max(setting.depth, kMinLayers);
  workload.config.model.depth = layers;
  workload.config.data.batch_size = batch;
  workload.config.training.update = Update::kSeparate;
  std::vector<Case> cases;
  for (const MemoryRung& rung : kMemoryRungs) {
    if (rung.key == "precision") workload.config.device.precision = Precision::kBf16;
    if (rung.key == "accumulation") workload.config.training.accumulate = kMicroSteps;
    if (rung.key == "recompute") {
      workload.config.training.recompute = std::lround(std::sqrt(static_cast<double>(layers)));
    }
    if (rung.key == "sharding") {
      const TrainConfig alone = workload.config;
      workload = ddp_workload(setting, kShards);
      const DeviceConfig device = workload.config.device;
      workload.config = alone;
      workload.config.device.device = device.device;
      workload.config.device.threads = device.threads;
      workload.config.parallel.scheme = RankScheme::kZero1;
      workload.config.data.batch_size = kShards * batch;
    }
    // The program's --batch-size is the size of a micro-step.
    Workload run = workload;
    run.config.data.batch_size /= run.config.training.accumulate;
    cases.push_back(new_case(setting, std::string(rung.key), run));
  }
  return cases;
}

std::string rung_fact(const MemoryRung& rung, const DeviceMemory& before,
                      const DeviceMemory& after) {
  if (after.bytes == before.bytes) {
    return fmt::format("With {} a device needs {} as before (from the plan).", rung.words,
                       human_bytes(after.bytes));
  }
  return fmt::format("With {} a device needs {} instead of {} (from the plan).", rung.words,
                     human_bytes(after.bytes), human_bytes(before.bytes));
}

FindingTable ladder_table(const Results& results, const std::vector<Comparison>& steps) {
  FindingTable table{.title = "Each row adds to the rows above",
                     .columns = {"with", "memory of a device (plan)", "against the baseline",
                                 "parameters", "gradients", "optimizer", "activations", "mean step",
                                 "time of a sample against the row above"}};
  const DeviceMemory first = memory_of(results.cases.front());
  for (std::size_t i = 0; i < results.cases.size(); ++i) {
    const DeviceMemory memory = memory_of(results.cases[i]);
    const auto bytes = [&](Category category) { return human_bytes(memory.by_category[category]); };
    table.rows.push_back(
        {std::string(kMemoryRungs.at(i).words), human_bytes(memory.bytes),
         factor_text(times_the_bytes(memory.bytes, first.bytes)), bytes(Category::kParameters),
         bytes(Category::kGradients), bytes(Category::kOptimizer), bytes(Category::kActivations),
         time_text(results.cases[i].mean_s()), i == 0 ? "" : factor_text(steps[i - 1].ratio)});
  }
  return table;
}

/// The lecture's claims about two rungs; whether they hold depends on the model.
FindingTable claims_table(const Results& results, const Comparison& recomputation) {
  const auto memory = [&](const char* key) { return memory_of(results.at(key)); };
  const DeviceMemory whole = memory("baseline"), narrow = memory("precision"),
                     before = memory("accumulation"), after = memory("recompute");
  const auto activations = [](const DeviceMemory& of) {
    return of.by_category[Category::kActivations];
  };
  return {.title = "Claims about them",
          .columns = {"what", "claimed", "here"},
          .rows = {{"memory with 16-bit numbers", "0.5x",
                    factor_text(times_the_bytes(narrow.bytes, whole.bytes))},
                   {"their activations", "0.5x",
                    factor_text(times_the_bytes(activations(narrow), activations(whole)))},
                   {"memory with recomputation", "0.4x",
                    factor_text(times_the_bytes(after.bytes, before.bytes))},
                   {"its activations", "0.4x",
                    factor_text(times_the_bytes(activations(after), activations(before)))},
                   {"time with recomputation", "1.3x", factor_text(recomputation.ratio)}}};
}

std::string recomputation_claim(const Estimate& longer) {
  constexpr double kClaimed = 1.3;
  return fmt::format(
      "{}: {} the time.",
      by_side(side_of(longer, kClaimed), "Recomputation costs more than the claimed 30 %",
              "Recomputation costs less than the claimed 30 %",
              "Whether recomputation costs more or less than the claimed 30 % is unclear"),
      factor_text(longer));
}

Findings conclude_memory(const Results& results) {
  std::vector<Comparison> steps;
  for (std::size_t i = 1; i < results.cases.size(); ++i) {
    steps.push_back(compare(results.samples_of(kMemoryRungs.at(i - 1).key),
                            results.samples_of(kMemoryRungs.at(i).key), results.setting.margin));
  }
  adjust_together(steps);
  Findings findings{.comparisons = steps, .tables = {ladder_table(results, steps)}};
  for (std::size_t i = 1; i < results.cases.size(); ++i) {
    const MemoryRung& rung = kMemoryRungs.at(i);
    findings.facts.push_back(
        rung_fact(rung, memory_of(results.cases[i - 1]), memory_of(results.cases[i])));
    if (results.cases[i].what().beyond_cores) continue;
    findings.sentences.push_back(
        sentence_of(steps[i - 1], fmt::format("with {}", rung.words), "without", "sample"));
  }
  const Comparison& recomputation = steps[2];
  findings.sentences.push_back(recomputation_claim(recomputation.ratio));
  findings.tables.push_back(claims_table(results, recomputation));
  std::vector<NamedMemory> devices;
  for (const Measurement& each : results.cases) {
    devices.emplace_back(each.what().key, memory_of(each));
  }
  findings.plots.push_back(
      memory_plot("Memory of a device, with ways to save it added one by one (plan)", devices));
  return findings;
}

}  // namespace

Experiment memory_experiment() {
  return {.name = "memory",
          .title = "Ways to save memory, added one by one",
          .question =
              "How much memory does each way to save memory save, and what does it cost in time?",
          .cases = memory_cases,
          .conclude = conclude_memory,
          .needs_mpi = true};
}

}  // namespace barestep
