// A small model of two layers on two devices: the batch in two halves, or the layers.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "core/units.h"
#include "lab/experiments/figures.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

enum class SplitOf { kNothing, kBatch, kLayers };

constexpr std::array kSplits = {SplitOf::kNothing, SplitOf::kBatch, SplitOf::kLayers};
constexpr std::array<std::int64_t, 2> kSplitBatches = {64, 32};

std::string split_key(SplitOf split, std::int64_t batch) {
  const char* const what = split == SplitOf::kNothing ? "whole"
                           : split == SplitOf::kBatch ? "batch"
                                                      : "layers";
  return fmt::format("{}-{}", what, batch);
}

Case split_case(const Setting& setting, SplitOf split, std::int64_t batch) {
  Workload workload = split == SplitOf::kNothing ? base_workload(setting) : dp_workload(setting, 2);
  TrainConfig& config = workload.config;
  config.model.dim.reset();
  config.model.depth.reset();
  config.model.layers = {1000, 2000, 1000};
  config.model.last_relu = false;
  config.data.batch_size = batch;
  config.training.update = Update::kSeparate;
  config.training.recompute = 1;
  if (!setting.on_gpu) config.device.threads = 1;
  if (split == SplitOf::kLayers) {
    config.parallel.pipeline = workload.ranks;
    config.parallel.schedule = PipelineSchedule::kNaive;
    config.parallel.micro_batches = 1;
  }
  Case what = new_case(setting, split_key(split, batch), workload);
  what.record_ops = true;
  return what;
}

std::vector<Case> two_splits_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const std::int64_t batch : kSplitBatches) {
    for (const SplitOf split : kSplits) {
      cases.push_back(split_case(setting, split, batch));
    }
  }
  return cases;
}

/// What a step moves between the devices, in one direction or the other.
std::string moved_text(const Workload& workload) {
  if (workload.ranks == 1) return "";
  const Traffic traffic = traffic_of(workload);
  return human_bytes(std::accumulate(traffic.bytes.begin(), traffic.bytes.end(), std::int64_t{0}));
}

FindingTable two_splits_table(const Results& results) {
  FindingTable table{
      .title = "1000 - 2000 - 1000 on one device and on two",
      .columns = {"case", "rows", "mean step", "speed against one device", "device 0 computes",
                  "device 1 computes", "moved between devices", "memory, by device"}};
  for (const Measurement& each : results.cases) {
    const Workload& workload = each.workload();
    const std::string alone = split_key(SplitOf::kNothing, workload.batch_size());
    std::vector<std::string> memory;
    for (const DeviceMemory& device : planned_memory(workload)) {
      memory.push_back(human_bytes(device.bytes));
    }
    table.rows.push_back({each.what().key, std::to_string(workload.batch_size()),
                          time_text(each.mean_s()),
                          factor_text(results.compare(alone, each.what().key).speed()),
                          percent_text(computing_share(each, 0)),
                          workload.ranks == 1 ? "" : percent_text(computing_share(each, 1)),
                          moved_text(workload), list_text(memory)});
  }
  return table;
}

std::string moved_fact(const Results& results) {
  const auto moved = [&](SplitOf split) {
    return moved_text(results.at(split_key(split, kSplitBatches[0])).workload());
  };
  return fmt::format(
      "In a step of {} rows devices exchange {} with the batch in two, parameters and gradients "
      "besides the rows, and {} with the layers in two, outputs and their gradients (counted in "
      "the program).",
      kSplitBatches[0], moved(SplitOf::kBatch), moved(SplitOf::kLayers));
}

std::string same_losses_fact(const Results& results) {
  double furthest = 0;
  for (std::size_t i = 0; i < results.cases.size(); i += kSplits.size()) {
    const auto of_batch = std::span(results.cases).subspan(i, kSplits.size());
    furthest = std::max(furthest, last_loss_difference(of_batch, of_batch.front()));
  }
  return fmt::format(
      "The last losses differ from those of one device by a share of {:.1e} at most.", furthest);
}

std::string shares_sentence(const Results& results, SplitOf split, std::int64_t batch) {
  const Measurement& each = results.at(split_key(split, batch));
  return fmt::format(
      "With the {} in two, at {} rows, device 0 computes during {} of a step, device 1 during {}.",
      split == SplitOf::kBatch ? "batch" : "layers", batch, percent_text(computing_share(each, 0)),
      percent_text(computing_share(each, 1)));
}

Findings conclude_two_splits(const Results& results) {
  const auto compared = [&](SplitOf a, SplitOf b, std::int64_t batch) {
    return results.compare(split_key(a, batch), split_key(b, batch));
  };
  const auto [large, small] = kSplitBatches;
  using enum SplitOf;
  const std::array gains = {compared(kNothing, kBatch, large), compared(kNothing, kLayers, large),
                            compared(kBatch, kLayers, large), compared(kNothing, kLayers, small)};
  Findings findings{
      .sentences = {{"batch-64", sentence_of(gains[0], "with the batch in two", "on one device"),
                     gains[0].word},
                    {"layers-64", sentence_of(gains[1], "with the layers in two", "on one device"),
                     gains[1].word},
                    {"layers-against-batch",
                     sentence_of(gains[2], "with the layers in two", "with the batch in two"),
                     gains[2].word},
                    {"layers-32",
                     sentence_of(gains[3], "with the layers in two", "on one device",
                                 fmt::format("step of {} rows", small)),
                     gains[3].word},
                    {"batch-64-computing", shares_sentence(results, kBatch, large)},
                    {"layers-64-computing", shares_sentence(results, kLayers, large)},
                    {"layers-32-computing", shares_sentence(results, kLayers, small)}},
      .facts = {{"moved", moved_fact(results)}, {"losses", same_losses_fact(results)}},
      .tables = {two_splits_table(results)},
      .plots = {account_plot(results.cases, keys_of(results))}};
  keep(findings, gains);
  return findings;
}

}  // namespace

Experiment two_splits_experiment() {
  return {
      .name = "two-splits",
      .title = "A small model in two: its batch or its layers",
      .question = "What is gained, moved and idle if two devices share the rows, or the layers?",
      .cases = two_splits_cases,
      .conclude = conclude_two_splits,
      .names =
          "layers-against-batch *-computing moved losses table "
          "phases-plot",
      .chooses = false};
}

}  // namespace barestep
