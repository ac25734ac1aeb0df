// The time that recomputation costs and the memory it saves, by the number of segments.
#include "train/recomputation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "core/units.h"
#include "lab/experiments/all.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

std::string segments_key(std::int64_t segments) {
  return fmt::format("segments-{}", segments);
}

std::int64_t segments_of(const Measurement& each) {
  return each.workload().config.training.recompute;
}

Recomputation recomputation_in(const Measurement& each) {
  return recomputation_of(WorkloadPrograms(each.workload()).steps());
}

/// The flops of a step, relative to a step without recomputation.
double flops_factor(const Recomputation& each) {
  return static_cast<double>(each.flops) / static_cast<double>(each.flops_without);
}

/// 1, 2, 4, ... segments, as long as each has two layers.
std::vector<Case> recompute_cases(const Setting& setting) {
  constexpr std::int64_t kMinLayers = 8;
  Workload workload = base_workload(setting);
  const std::int64_t layers = std::max(setting.depth, kMinLayers);
  workload.config.model.depth = layers;
  std::vector<Case> cases;
  for (std::int64_t segments = 1; segments <= layers / 2; segments *= 2) {
    workload.config.training.recompute = segments;
    cases.push_back(new_case(setting, segments_key(segments), workload));
  }
  return cases;
}

/// Whether the time grows with the flops. `longer` is the ratio of step times.
std::string flops_sentence(const Estimate& longer, double flops, std::int64_t segments) {
  const std::string step = fmt::format("in {} a step takes", counted(segments, "segment"));
  const std::string figures =
      fmt::format("{} against {} (calculated)", factor_text(longer), factor_text(flops));
  return fmt::format(
      "{}: {} {}.",
      by_side(side_of(longer, flops), "Recomputation adds a larger share of time than of flops",
              "Recomputation adds a smaller share of time than of flops",
              "Whether recomputation adds a larger share of time than of flops is unclear"),
      step, figures);
}

FindingTable measured_segments(const Results& results) {
  FindingTable table{.title = "A step by the number of segments",
                     .columns = {"segments", "mean step", "time against one", "flops (calculated)",
                                 "recomputation", "activations' memory"}};
  for (const Measurement& each : results.cases) {
    const Recomputation planned = recomputation_in(each);
    table.rows.push_back({std::to_string(segments_of(each)), time_text(each.mean_s()),
                          factor_text(results.compare(segments_key(1), each.what().key).ratio),
                          factor_text(flops_factor(planned)), time_text(each.phase_s("recompute")),
                          human_bytes(planned.activation_bytes)});
  }
  return table;
}

/// Measured: what torch.utils.checkpoint.checkpoint_sequential keeps until backward for 16 x
/// (Linear, ReLU), by the number of segments. In units of a layer's output; input and target
/// included.
struct KeptByPyTorch {
  std::int64_t segments;
  std::int64_t outputs;
};
constexpr std::array<KeptByPyTorch, 5> kKeptByPyTorch = {
    {{1, 18}, {2, 11}, {4, 9}, {8, 11}, {16, 18}}};
constexpr std::int64_t kLayersOfPyTorch = 16;
constexpr std::int64_t kProductsOfPyTorch = 3 * kLayersOfPyTorch - 1;

/// Calculated for L layers in s segments. Kept are x, y and the outputs: s - 1 + L / s of them, or
/// all L. Repeated are the products of s - 1 segments; PyTorch repeats whole segments, ours all but
/// the last product of each.
FindingTable pytorch_segments_table() {
  FindingTable table{
      .title = "16 x (Linear, ReLU): outputs kept until backward, and additional products",
      .columns = {"segments", "kept by PyTorch (measured)", "kept (calculated)",
                  "additional products in PyTorch (calculated)",
                  "additional products here (calculated)"}};
  for (const KeptByPyTorch& each : kKeptByPyTorch) {
    const std::int64_t size = kLayersOfPyTorch / each.segments;
    const auto share = [](std::int64_t products) {
      return percent_text(static_cast<double>(products) / static_cast<double>(kProductsOfPyTorch));
    };
    table.rows.push_back({std::to_string(each.segments), std::to_string(each.outputs),
                          std::to_string(2 + each.segments - 1 + size),
                          share((each.segments - 1) * size),
                          share((each.segments - 1) * (size - 1))});
  }
  return table;
}

Findings conclude_recompute(const Results& results) {
  const Measurement& one = results.cases.front();
  const Measurement& min = *std::ranges::min_element(
      results.cases, {},
      [](const Measurement& each) { return recomputation_in(each).activation_bytes; });
  const Comparison cost = results.compare(one.what().key, min.what().key);
  const Recomputation planned = recomputation_in(min);
  const std::int64_t segments = segments_of(min);
  std::vector<std::string> labels;
  for (const Measurement& each : results.cases) {
    labels.push_back(counted(segments_of(each), "segment"));
  }
  std::vector<std::string> smallest;
  for (const Measurement& each : results.cases) {
    if (recomputation_in(each).activation_bytes != planned.activation_bytes) continue;
    smallest.push_back(std::to_string(segments_of(each)));
  }
  const auto pays =
      planned.batch_size >= planned.paying_batch_size ? "pays off" : "hardly pays off";
  return {
      .sentences = {sentence_of(cost, fmt::format("in {}", counted(segments, "segment")),
                                "without recomputation"),
                    flops_sentence(cost.ratio, flops_factor(planned), segments)},
      .facts = {fmt::format("Activations need the least memory in {} segments: {} instead of {} "
                            "(from the plan).",
                            fmt::join(smallest, " or "), human_bytes(planned.activation_bytes),
                            human_bytes(planned.activation_bytes_without)),
                fmt::format("At a batch of {} recomputation {}: outputs of layers are as large as "
                            "parameters, gradients and optimizer from a batch of {} on "
                            "(calculated).",
                            grouped(planned.batch_size), pays, grouped(planned.paying_batch_size))},
      .comparisons = {cost},
      .tables = {measured_segments(results), pytorch_segments_table()},
      .plots = {account_plot(results.cases, labels)}};
}

}  // namespace

Experiment recompute_experiment() {
  return {.name = "recompute",
          .title = "Recomputation of activations",
          .question = "What does recomputation cost in time, and what does it save in memory?",
          .cases = recompute_cases,
          .conclude = conclude_recompute,
          .chooses = false};
}

}  // namespace barestep
