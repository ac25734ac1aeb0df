// What 16-bit numbers save in a training step: time and memory.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "core/units.h"
#include "lab/experiments/figures.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

/// A batch at which products take most of a step; used in addition to the setting's own.
constexpr std::int64_t kLargeBatch = 512;

/// The lowest claimed speed-up of mixed precision.
constexpr double kClaimedSpeed = 2;

std::string precision_key(Precision precision, std::int64_t batch) {
  return fmt::format("{}-{}", name_of(precision), batch);
}

std::vector<std::int64_t> precision_batches(const Setting& setting) {
  if (setting.batch_size >= kLargeBatch) return {setting.batch_size};
  return {setting.batch_size, kLargeBatch};
}

/// Precisions to compare with fp32.
std::vector<Precision> reduced_precisions(const Setting& setting) {
  if (setting.on_gpu) return {Precision::kTf32, Precision::kBf16, Precision::kFp16};
  return {Precision::kBf16, Precision::kFp16};
}

std::vector<Case> precision_cases(const Setting& setting) {
  std::vector<Precision> precisions = reduced_precisions(setting);
  precisions.insert(precisions.begin(), Precision::kFp32);
  std::vector<Case> cases;
  for (const std::int64_t batch : precision_batches(setting)) {
    for (const Precision precision : precisions) {
      Workload workload = base_workload(setting);
      workload.config.data.batch_size = batch;
      workload.config.training.update = Update::kSeparate;
      workload.config.device.precision = precision;
      cases.push_back(new_case(setting, precision_key(precision, batch), workload));
    }
  }
  return cases;
}

/// Whether the claimed speed-up of 2 to 3 holds here, in the case `fastest` or in any other.
std::string claim_sentence(const std::vector<Comparison>& all, const Comparison& fastest,
                           Precision precision, std::int64_t batch) {
  const std::string figures = fmt::format("{} at a batch of {}, {} as fast as fp32",
                                          name_of(precision), batch, factor_text(fastest.speed()));
  if (side_of(fastest.speed(), kClaimedSpeed) == Side::kAbove) {
    return fmt::format("The claimed factor of 2 to 3 is reached here: {}.", figures);
  }
  const bool is_below = std::ranges::all_of(all, [](const Comparison& each) {
    return side_of(each.speed(), kClaimedSpeed) == Side::kBelow;
  });
  return is_below
             ? fmt::format("The claimed factor of 2 to 3 is not reached here: at most {}.", figures)
             : fmt::format("Whether the claimed factor of 2 to 3 is reached here is unclear: {}.",
                           figures);
}

/// The planned memory, compared with the claim that mixed precision halves it. `where` begins the
/// sentence; `workload` is the one with bf16.
std::string memory_fact(const std::string& where, Workload workload) {
  const DeviceMemory bf16 = planned_memory(workload).front();
  workload.config.device.precision = Precision::kFp32;
  const DeviceMemory fp32 = planned_memory(workload).front();
  const auto activations = [](const DeviceMemory& memory) {
    return human_bytes(memory.by_category[Category::kActivations]);
  };
  return fmt::format(
      "{} mixed precision {} memory: {} instead of {}, {} (from the plan). Activations are {} "
      "instead of {}; a rounded copy of the weights is added.",
      where, bf16.bytes < fp32.bytes ? "saves" : "costs", human_bytes(bf16.bytes),
      human_bytes(fp32.bytes), factor_text(times_the_bytes(bf16.bytes, fp32.bytes)),
      activations(bf16), activations(fp32));
}

/// For one device, and for the ranks of mlp_ddp, which reduce fp32 gradients.
std::vector<Finding> memory_facts(const Results& results) {
  constexpr int kRanks = 2;
  std::vector<Finding> facts;
  for (const std::int64_t batch : precision_batches(results.setting)) {
    Workload workload = results.at(precision_key(Precision::kBf16, batch)).workload();
    facts.emplace_back(fmt::format("memory-{}", batch),
                       memory_fact(fmt::format("At a batch of {}", batch), workload));
    workload.trainer = TrainerKind::kDdp;
    workload.ranks = kRanks;
    workload.config.data.batch_size = kRanks * batch;
    facts.emplace_back(
        fmt::format("memory-of-ranks-{}", batch),
        memory_fact(fmt::format("On each of two ranks with {} samples", batch), workload));
  }
  return facts;
}

FindingTable measured_precisions(const Results& results, const std::vector<Comparison>& all) {
  FindingTable table{.title = "A step by precision",
                     .columns = {"batch", "precision", "mean step", "speed against fp32",
                                 "optimizer", "memory (plan)", "activations (plan)"}};
  std::size_t place = 0;
  for (const Measurement& each : results.cases) {
    const Precision precision = each.workload().config.device.precision;
    const DeviceMemory memory = memory_of(each);
    const bool is_fp32 = precision == Precision::kFp32;
    table.rows.push_back({std::to_string(each.workload().batch_size()),
                          std::string(name_of(precision)), time_text(each.mean_s()),
                          is_fp32 ? "" : factor_text(all.at(place++).speed()),
                          time_text(each.phase_s("optimizer")), human_bytes(memory.bytes),
                          human_bytes(memory.by_category[Category::kActivations])});
  }
  return table;
}

/// Published by others, not measured here.
FindingTable published_precision(const std::string& speed, const std::string& memory) {
  constexpr const char* kRecipe = "pytorch.org/tutorials/recipes/recipes/amp_recipe.html";
  constexpr const char* kNotebook =
      "github.com/im-zhong/deep_learning/blob/f0f6362e/learn-amp/amp.ipynb";
  constexpr const char* kForum = "discuss.pytorch.org/t/134442";
  constexpr const char* kSeminar =
      "github.com/mryab/efficient-dl-systems, week02_fast_pipelines/seminar/practice.ipynb";
  constexpr const char* kAnother = "another GPU";
  return {
      .title = "Published figures (cited)",
      .name = "published-table",
      .columns = {"what", "published", "here", "address"},
      .rows = {
          {"speed of AMP", "2x to 3x (claimed)", speed, kRecipe},
          {"peak of its recipe, 4096 x 3, batch 512, on a T4", "1.35 GB, with AMP 1.58 GB (cited)",
           memory, "github.com/pytorch/tutorials/issues/1267"},
          {"the recipe, batch 4096", "7.738 s, with AMP 3.325 s (cited)", kAnother, kNotebook},
          {"the recipe on an RTX 3080", "1.803 s, with AMP 2.268 s: slower (cited)", kAnother,
           kForum},
          {"6144 wide, batch 512", "0.288 s, with a scaler 0.356 s and 208 MB (cited)", kAnother,
           kSeminar}}};
}

Findings conclude_precision(const Results& results) {
  const std::vector<Precision> reduced = reduced_precisions(results.setting);
  const std::vector<std::int64_t> batches = precision_batches(results.setting);
  std::vector<Comparison> all;
  for (const std::int64_t batch : batches) {
    for (const Precision precision : reduced) {
      all.push_back(
          results.compare(precision_key(Precision::kFp32, batch), precision_key(precision, batch)));
    }
  }
  adjust_together(all);
  Findings findings{.comparisons = all, .tables = {measured_precisions(results, all)}};
  std::size_t fastest = 0;
  std::vector<PlotSeries> speeds;
  for (const Precision precision : reduced) {
    speeds.push_back({.name = std::string(name_of(precision))});
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t which = i % reduced.size();
    const std::int64_t batch = batches[i / reduced.size()];
    findings.sentences.push_back({all[i].b,
                                  sentence_of(all[i], fmt::format("in {}", name_of(reduced[which])),
                                              "in fp32", fmt::format("step of {} samples", batch)),
                                  all[i].word});
    speeds[which].points.push_back(plot_point(static_cast<double>(batch), all[i].speed()));
    if (all[i].speed().median > all[fastest].speed().median) fastest = i;
  }
  findings.sentences.push_back(
      {"claim", claim_sentence(all, all[fastest], reduced[fastest % reduced.size()],
                               batches[fastest / reduced.size()])});
  findings.facts = memory_facts(results);
  const std::int64_t largest = batches.back();
  const auto bytes_in = [&](Precision precision) {
    return memory_of(results.at(precision_key(precision, largest))).bytes;
  };
  findings.tables.push_back(published_precision(
      fmt::format("{} at batch {}", factor_text(all[fastest].speed()),
                  batches[fastest / reduced.size()]),
      fmt::format(
          "{} at batch {}",
          factor_text(times_the_bytes(bytes_in(Precision::kBf16), bytes_in(Precision::kFp32))),
          largest)));
  findings.plots.push_back({.title = "How many times as fast as in fp32 a step is",
                            .x_label = "samples in a batch",
                            .y_label = "times as fast as in fp32",
                            .log_x = true,
                            .series = speeds});
  return findings;
}

}  // namespace

Experiment precision_experiment() {
  return {.name = "precision",
          .title = "Mixed precision",
          .question = "How much time and memory do 16-bit numbers save in a training step?",
          .cases = precision_cases,
          .conclude = conclude_precision,
          .names = "claim memory-* table published-table plot"};
}

}  // namespace barestep
