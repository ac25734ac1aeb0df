// The cost of options of the model or the run: activations, gradient accumulation, checkpoints.
#include <fmt/format.h>

#include <array>
#include <functional>
#include <utility>

#include "core/units.h"
#include "lab/experiments/all.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

std::int64_t activation_bytes(const Measurement& each) {
  return memory_of(each).by_category[Category::kActivations];
}

constexpr std::string_view kReferenceActivation = "relu";

std::vector<Case> activations_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const Activation activation : kValuesOf<Activation>) {
    Workload workload = base_workload(setting);
    workload.config.model.activation = activation;
    cases.push_back(new_case(setting, std::string(name_of(activation)), workload));
  }
  return cases;
}

std::string slower_sentence(const std::vector<Comparison>& against_relu) {
  std::vector<std::string> slower;
  for (const Comparison& each : against_relu) {
    if (!each.is_slower()) continue;
    slower.push_back(fmt::format("{} with {}", each.b, factor_text(each.ratio)));
  }
  if (!slower.empty()) {
    return fmt::format("Steps that take longer than with ReLU: {}.", list_text(slower));
  }
  if (const std::string too_few = too_few_of(against_relu); !too_few.empty()) {
    return fmt::format("Whether any activation makes a step longer than ReLU does: {}.", too_few);
  }
  for (const Comparison& each : against_relu) {
    if (each.word == Word::kUndecided) {
      return "Whether any activation makes a step longer than ReLU does is unclear.";
    }
  }
  return fmt::format("No activation makes a step more than {} longer than ReLU does.",
                     chosen_percent(against_relu.front().margin - 1));
}

Findings conclude_activations(const Results& results) {
  std::vector<std::string> others;
  for (const Measurement& each : results.cases) {
    if (each.what().key != kReferenceActivation) others.push_back(each.what().key);
  }
  const std::vector<Comparison> all = results.compare(kReferenceActivation, others);
  const Measurement& relu = results.at(kReferenceActivation);
  FindingTable table{
      .title = "A step with each activation",
      .columns = {"activation", "mean step", "time against ReLU", "activations' memory"}};
  std::vector<std::string> larger;
  for (const Measurement& each : results.cases) {
    const std::string& key = each.what().key;
    const Comparison one = results.compare(kReferenceActivation, key);
    table.rows.push_back({key, time_text(each.mean_s()), factor_text(one.ratio),
                          human_bytes(activation_bytes(each))});
    if (activation_bytes(each) > activation_bytes(relu)) larger.push_back(key);
  }
  const std::string memory =
      larger.empty()
          ? "No activation needs more memory than ReLU: gradients are found from outputs."
          : fmt::format("{} keep{} the input for the gradient: {} of activations instead of {}.",
                        list_text(larger), larger.size() == 1 ? "s" : "",
                        human_bytes(activation_bytes(results.at(larger.front()))),
                        human_bytes(activation_bytes(relu)));
  return {.sentences = {slower_sentence(all)},
          .facts = {memory + " (From the plan.)"},
          .comparisons = all,
          .tables = {table},
          .plots = {account_plot(results.cases, keys_of(results))}};
}

constexpr std::array kPartsOfAStep = {1, 2, 4, 8};

std::string parts_key(int parts) {
  return fmt::format("parts-{}", parts);
}

/// The same samples per step, in more and more micro-steps.
std::vector<Case> accumulation_cases(const Setting& setting) {
  std::vector<Case> cases;
  constexpr std::int64_t kMaxParts = kPartsOfAStep.back(), kMinBatch = 64;
  const std::int64_t batch = std::max(setting.batch_size / kMaxParts * kMaxParts, kMinBatch);
  for (const int parts : kPartsOfAStep) {
    Workload workload = base_workload(setting);
    workload.config.data.batch_size = batch / parts;
    workload.config.training.accumulate = parts;
    cases.push_back(new_case(setting, parts_key(parts), workload));
  }
  return cases;
}

Findings conclude_accumulation(const Results& results) {
  const Comparison max = results.compare(parts_key(1), parts_key(kPartsOfAStep.back()));
  const Measurement &whole = results.cases.front(), &split = results.cases.back();
  FindingTable table{.title = "The same samples in a step, in parts",
                     .columns = {"parts", "samples of a part", "mean step", "time against one part",
                                 "activations' memory"}};
  std::vector<std::string> labels;
  for (const Measurement& each : results.cases) {
    const std::int64_t parts = each.workload().config.training.accumulate;
    labels.push_back(counted(parts, "part"));
    table.rows.push_back({std::to_string(parts),
                          std::to_string(each.workload().config.data.batch_size),
                          time_text(each.mean_s()),
                          factor_text(results.compare(parts_key(1), each.what().key).ratio),
                          human_bytes(activation_bytes(each))});
  }
  return {.sentences = {sentence_of(max, fmt::format("in {} parts", kPartsOfAStep.back()),
                                    "in one part")},
          .facts = {fmt::format("Activations need {} in one part and {} in {} (from the plan); "
                                "weights are updated once either way.",
                                human_bytes(activation_bytes(whole)),
                                human_bytes(activation_bytes(split)), kPartsOfAStep.back())},
          .comparisons = {max},
          .tables = {table},
          .plots = {account_plot(results.cases, labels)}};
}

/// One checkpoint in the middle of the run, so that all of its writing overlaps with steps.
std::vector<Case> checkpoint_cases(const Setting& setting) {
  const Workload workload = base_workload(setting);
  std::vector<Case> cases = {new_case(setting, "without", workload),
                             new_case(setting, "with-one", workload)};
  cases.back().checkpoint_every = std::max<std::int64_t>((setting.steps + 1) / 2, 1);
  return cases;
}

std::string checkpoint_sentence(const Estimate& cost) {
  constexpr double kIntervalS = 600, kMuch = 0.03;
  const std::string word = by_side(side_of(cost, kMuch * kIntervalS), "more", "less", "");
  return fmt::format(
      "{}: one changes the time of a run by {}.",
      word.empty()
          ? "Whether checkpoints take more than 3 % of a run at the default interval of 10 "
            "minutes is unclear"
          : fmt::format("At the default interval of 10 minutes, checkpoints take {} than "
                        "3 % of a run (calculated)",
                        word),
      time_text(cost));
}

Findings conclude_checkpoint(const Results& results) {
  const Measurement &without = results.at("without"), &with = results.at("with-one");
  const Estimate cost =
      estimate_by_round(with.total_s_by_start(), without.total_s_by_start(), std::minus<double>());
  FindingTable table{.title = "All steps of a run, and its pause for a checkpoint",
                     .columns = {"checkpoints", "time", "pause", "slowest step"}};
  for (const auto& [name, each] : {std::pair{"none", &without}, std::pair{"one", &with}}) {
    table.rows.push_back({name, time_text(estimate_of(each->total_s_by_start())),
                          time_text(estimate_of(each->paused_s_by_start())),
                          time_text(each->slowest_s())});
  }
  const WorkloadPrograms programs(with.workload());
  constexpr std::int64_t kAdamBytes = 3 * 4;  // a weight and its two moments
  return {
      .sentences = {checkpoint_sentence(cost)},
      .facts = {fmt::format("A checkpoint holds {}: weights, and Adam's two moments.",
                            human_bytes(kAdamBytes * programs.steps().parameter_list().size()))},
      .tables = {table}};
}

}  // namespace

Experiment checkpoint_experiment() {
  return {.name = "checkpoint",
          .title = "Checkpoints",
          .question = "What does it cost to write a checkpoint during training?",
          .cases = checkpoint_cases,
          .conclude = conclude_checkpoint};
}

Experiment activations_experiment() {
  return {.name = "activations",
          .title = "Activations",
          .question = "What does each activation cost in time and memory?",
          .cases = activations_cases,
          .conclude = conclude_activations};
}

Experiment accumulation_experiment() {
  return {.name = "accumulation",
          .title = "Accumulating gradients",
          .question = "What does a step in parts cost in time, and what does it save in memory?",
          .cases = accumulation_cases,
          .conclude = conclude_accumulation,
          .chooses = false};
}

}  // namespace barestep
