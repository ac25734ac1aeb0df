// The ways to need less memory that a lecture of the course (docs/lab.md) lists, each added to the
// ones before: what each saves and what it costs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"
#include "lab/experiments/figures.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

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

FindingTable ladder_table(const std::vector<const Measurement*>& cases,
                          std::span<const MemoryRung> rungs, const std::vector<Comparison>& steps) {
  FindingTable table{.title = "Each row adds to the rows above",
                     .name = "ladder-table",
                     .columns = {"with", "memory of a device (plan)", "against the baseline",
                                 "parameters", "gradients", "optimizer", "activations", "mean step",
                                 "time of a sample against the row above"}};
  const DeviceMemory first = memory_of(*cases.front());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const DeviceMemory memory = memory_of(*cases[i]);
    const auto bytes = [&](Category category) { return human_bytes(memory.by_category[category]); };
    table.rows.push_back(
        {std::string(rungs[i].words), human_bytes(memory.bytes),
         factor_text(times_the_bytes(memory.bytes, first.bytes)), bytes(Category::kParameters),
         bytes(Category::kGradients), bytes(Category::kOptimizer), bytes(Category::kActivations),
         time_text(cases[i]->mean_s()), i == 0 ? "" : factor_text(steps[i - 1].ratio)});
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
          .name = "claims-table",
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
  Findings findings;
  const std::vector<Comparison> steps = add_ladder(findings, results, kMemoryRungs);
  const Comparison& recomputation = steps[2];
  findings.sentences.push_back({"claim", recomputation_claim(recomputation.ratio)});
  findings.tables.push_back(claims_table(results, recomputation));
  return findings;
}

}  // namespace

std::vector<Comparison> add_ladder(Findings& findings, const Results& results,
                                   std::span<const MemoryRung> rungs) {
  std::vector<const Measurement*> cases;
  std::vector<NamedMemory> devices;
  for (const MemoryRung& rung : rungs) {
    cases.push_back(&results.at(rung.key));
    devices.emplace_back(rung.key, memory_of(*cases.back()));
  }
  std::vector<Comparison> steps;
  for (std::size_t i = 1; i < rungs.size(); ++i) {
    steps.push_back(compare(results.samples_of(rungs[i - 1].key), results.samples_of(rungs[i].key),
                            results.setting.margin));
  }
  // The last rungs may have more devices than there are.
  const auto beyond = std::ranges::find_if(
      cases, [](const Measurement* each) { return each->what().beyond_cores; });
  const auto compared =
      std::span(steps).first(static_cast<std::size_t>(beyond - cases.begin()) - 1);
  adjust_together(compared);
  for (std::size_t i = 1; i < rungs.size(); ++i) {
    findings.facts.push_back({fmt::format("{}-memory", rungs[i].key),
                              rung_fact(rungs[i], devices[i - 1].second, devices[i].second)});
    if (i > compared.size()) continue;
    findings.sentences.push_back(
        {std::string(rungs[i].key),
         sentence_of(steps[i - 1], fmt::format("with {}", rungs[i].words), "without", "sample"),
         steps[i - 1].word});
  }
  keep(findings, compared);
  findings.tables.push_back(ladder_table(cases, rungs, steps));
  findings.plots.push_back(
      memory_plot("Memory of a device, with ways to save it added one by one (plan)", devices));
  return steps;
}

Experiment memory_experiment() {
  return {.name = "memory",
          .title = "Ways to save memory, added one by one",
          .question =
              "How much memory does each way to save memory save, and what does it cost in time?",
          .cases = memory_cases,
          .conclude = conclude_memory,
          .names = "claim *-memory ladder-table claims-table memory-plot",
          .needs_mpi = true};
}

}  // namespace barestep
