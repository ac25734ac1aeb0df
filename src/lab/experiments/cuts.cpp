// What it costs and saves to cut a model among ranks: every layer, the list of layers, or both,
// beside sharing the batch.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "core/units.h"
#include "lab/experiments/all.h"
#include "lab/findings.h"
#include "lab/mesh_search.h"
#include "lab/prediction.h"
#include "lab/workload.h"
#include "train/pass_schedule.h"

namespace barestep {
namespace {

/// A run of ranks of which `tensor` share every layer of each of `stages` stages.
Workload cut_workload(const Setting& setting, int ranks, std::int64_t tensor, std::int64_t stages) {
  Workload workload = ddp_workload(setting, ranks);
  // Stages have a layer at least and do not recompute.
  workload.config.model.depth = std::max<std::int64_t>(setting.depth, ranks);
  workload.config.training.recompute = 1;
  workload.config.parallel.tensor = tensor;
  workload.config.parallel.pipeline = stages;
  return workload;
}

/// The same with one rank.
Case uncut_case(const Setting& setting, std::string key, std::int64_t batch_size) {
  Workload workload = cut_workload(setting, compared_with_one(setting), 1, 1);
  workload.ranks = 1;
  workload.config.data.batch_size = batch_size;
  return new_case(setting, std::move(key), workload);
}

/// A row for each case; `reference` is that of one rank.
FindingTable table_of_cuts(const Results& results, std::string title,
                           const std::function<std::string(const Measurement&)>& reference) {
  FindingTable table{
      .title = std::move(title),
      .columns = {"case", "mean step", "speed against one rank", "waits for other ranks",
                  "optimizer", "a rank sends", "memory of a rank, at most"}};
  for (const Measurement& each : results.cases) {
    const Comparison gain = results.compare(reference(each), each.what().key);
    table.rows.push_back({each.what().key, time_text(each.mean_s()), factor_text(gain.speed()),
                          each.ranks() == 1 ? "" : percent_text(waiting_share(each)),
                          time_text(each.phase_s("optimizer")),
                          human_bytes(mean_sent_bytes(each.workload())),
                          human_bytes(max_rank_bytes(each.workload()))});
  }
  return table;
}

// Tensor ranks beside copies of the model, at two batches.

std::vector<std::int64_t> batches_of(const Setting& setting) {
  std::vector<std::int64_t> batches = {setting.batch_size};
  if (setting.scaling_batch_size != setting.batch_size) {
    batches.push_back(setting.scaling_batch_size);
  }
  return batches;
}

std::string key_at(std::string_view what, std::int64_t batch) {
  return fmt::format("{}-{}", what, batch);
}

std::vector<Case> tensor_cases(const Setting& setting) {
  std::vector<Case> cases;
  const int ranks = compared_with_one(setting);
  for (const std::int64_t batch : batches_of(setting)) {
    cases.push_back(uncut_case(setting, key_at("one-rank", batch), batch));
    for (const auto& [name, tensor] : {std::pair{"ddp", 1}, std::pair{"tensor", ranks}}) {
      Workload workload = cut_workload(setting, ranks, tensor, 1);
      workload.config.data.batch_size = batch;
      cases.push_back(new_case(setting, key_at(name, batch), workload));
    }
  }
  return cases;
}

/// Why tensor ranks win or lose: what they send does not depend on the width squared.
std::string sent_fact(const Results& results, std::int64_t batch) {
  const auto sent = [&](std::string_view what) {
    return human_bytes(mean_sent_bytes(results.at(key_at(what, batch)).workload()));
  };
  return fmt::format(
      "At batch {} a rank sends {} a step, activations and their gradients, if ranks share every "
      "layer, and {}, gradients of weights, if they share the batch (calculated).",
      batch, sent("tensor"), sent("ddp"));
}

/// On a machine with fast links: the course's model.
void add_simulated_tensor(Findings& findings) {
  const MachineCard card = load_card("h200-nvlink");
  FindingTable table{
      .title = fmt::format("Simulated: step times of 8192 x 6, batch 64, on {}", card.name),
      .columns = {"ranks", "ddp", "speed-up", "tensor", "speed-up"}};
  const double one_s = predicted_step({}, card, 1).step_s;
  for (const int ranks : {1, 2, 4, 8}) {
    const double ddp_s = predicted_step({}, card, ranks).step_s;
    const double tensor_s = predicted_step({.tensor = kAllRanks}, card, ranks).step_s;
    table.rows.push_back({std::to_string(ranks), time_text(ddp_s), factor_text(one_s / ddp_s),
                          time_text(tensor_s), factor_text(one_s / tensor_s)});
    if (ranks != 4) continue;
    const auto sent = [&](const PredictedModel& model) {
      return human_bytes(mean_sent_bytes(workload_of(model, card, ranks)));
    };
    findings.facts.push_back(fmt::format(
        "Simulated: 8192 x 6 at batch 64 on 4 of {}: tensor ranks are {} as fast as one rank, ddp "
        "{}. A tensor rank updates a quarter of the weights and sends {} a step; a rank of ddp "
        "updates all of them and sends {}.",
        card.name, factor_text(one_s / tensor_s), factor_text(one_s / ddp_s),
        sent({.tensor = kAllRanks}), sent({})));
  }
  findings.tables.push_back(std::move(table));
}

Findings conclude_tensor(const Results& results) {
  const std::string ranks = several_words(compared_with_one(results.setting), "rank");
  Findings findings;
  for (const std::int64_t batch : batches_of(results.setting)) {
    const std::string tensor =
        fmt::format("at batch {} with every layer shared by {}", batch, ranks);
    const Comparison both = results.compare(key_at("ddp", batch), key_at("tensor", batch));
    const Comparison gain = results.compare(key_at("one-rank", batch), key_at("tensor", batch));
    findings.sentences.push_back(sentence_of(both, tensor, "with the batch shared"));
    findings.sentences.push_back(sentence_of(gain, tensor, "on one rank"));
    findings.facts.push_back(sent_fact(results, batch));
    keep(findings, std::array{both, gain});
  }
  adjust_together(findings.comparisons);
  const auto batch_of = [](const Measurement& each) { return each.workload().batch_size(); };
  const std::int64_t batch = results.setting.batch_size;
  findings.facts.push_back(fmt::format(
      "A rank needs {} if it has a part of every layer, {} if it has them all (from the plan).",
      human_bytes(max_rank_bytes(results.at(key_at("tensor", batch)).workload())),
      human_bytes(max_rank_bytes(results.at(key_at("ddp", batch)).workload()))));
  findings.tables = {table_of_cuts(
      results, several_words(compared_with_one(results.setting), "rank", true) + " by batch",
      [&](const Measurement& each) { return key_at("one-rank", batch_of(each)); })};
  findings.plots = {account_plot(results.cases, keys_of(results))};
  add_simulated_tensor(findings);
  return findings;
}

// Stages, by schedule and micro-batches.

struct PipelineCase {
  std::string key;
  PipelineSpec spec{};
};

std::vector<PipelineCase> pipelines_of(const Setting& setting) {
  using enum PipelineSchedule;
  const int stages = compared_with_one(setting);
  std::vector<PipelineCase> all = {{"naive", {stages, 1, kNaive}}};
  for (const int times : {1, 2, 4}) {
    const int count = times * stages;
    all.push_back({fmt::format("1f1b-{}", count), {stages, count, kOneForwardOneBackward}});
  }
  all.push_back({fmt::format("gpipe-{}", 4 * stages), {stages, 4 * stages, kGPipe}});
  all.push_back({fmt::format("zb-h1-{}", 4 * stages), {stages, 4 * stages, kZeroBubbleH1}});
  return all;
}

std::vector<Case> pipeline_cases(const Setting& setting) {
  std::vector<Case> cases = {uncut_case(setting, "one-rank", setting.scaling_batch_size)};
  for (const auto& [key, spec] : pipelines_of(setting)) {
    Workload workload = cut_workload(setting, spec.stages, 1, spec.stages);
    workload.config.data.batch_size = setting.scaling_batch_size;
    workload.config.parallel.schedule = spec.schedule;
    workload.config.parallel.micro_batches = spec.micro_batches;
    cases.push_back(new_case(setting, key, workload));
  }
  return cases;
}

/// The measured bubble beside that of equal stages.
std::string bubble_sentence(const Measurement& each, const PipelineSpec& spec) {
  const Estimate share = waiting_share(each);
  const double ideal = ideal_bubble(spec);
  const std::string than = fmt::format("as equal stages would, {} (calculated): {} of a step",
                                       percent_text(ideal), percent_text(share));
  return by_side(side_of(share, ideal),
                 fmt::format("In {} stages wait longer than equal stages would, {} (calculated): "
                             "{} of a step.",
                             each.what().key, percent_text(ideal), percent_text(share)),
                 fmt::format("In {} stages wait less than equal stages would, {} (calculated): {} "
                             "of a step, in which they also have the optimizer's work.",
                             each.what().key, percent_text(ideal), percent_text(share)),
                 fmt::format("In {} stages wait about as long {}.", each.what().key, than));
}

Findings conclude_pipeline(const Results& results) {
  const std::vector<PipelineCase> pipelines = pipelines_of(results.setting);
  std::vector<std::string> keys;
  FindingTable bubbles{.title = "Waiting for other stages, mean of the stages",
                       .columns = {"case", "measured", "equal stages (calculated)"}};
  for (const auto& [key, spec] : pipelines) {
    keys.push_back(key);
    bubbles.rows.push_back(
        {key, percent_text(waiting_share(results.at(key))), percent_text(ideal_bubble(spec))});
  }
  const Fastest fastest = fastest_of(results.steps_of(keys), results.setting.margin);
  const PipelineCase& most = *(pipelines.end() - 3);  // micro-batches, of 1f1b
  const std::string& gpipe = (pipelines.end() - 2)->key;
  const std::string& split = pipelines.back().key;
  const std::string stages = several_words(most.spec.stages, "stage");
  const std::array compared = {results.compare("naive", most.key),
                               results.compare("one-rank", most.key),
                               results.compare(most.key, split), results.compare(gpipe, most.key)};
  Findings findings{
      .sentences = {fastest_sentence(fastest, keys, "Fastest of the pipelines"),
                    sentence_of(compared[0], "with " + most.key, "with naive"),
                    sentence_of(compared[1], "with " + most.key + " on " + stages, "on one rank"),
                    bubble_sentence(results.at(most.key), most.spec),
                    sentence_of(compared[2], "with " + split, "with " + most.key),
                    sentence_of(compared[3], "with " + most.key, "with " + gpipe)},
      .facts = {fmt::format(
          "With {} a rank needs {} at most, with {} {}: it keeps the activations of fewer "
          "micro-batches (from the plan).",
          most.key, human_bytes(max_rank_bytes(results.at(most.key).workload())), gpipe,
          human_bytes(max_rank_bytes(results.at(gpipe).workload())))},
      .tables = {table_of_cuts(results, several_words(most.spec.stages, "stage", true),
                               [](const Measurement&) { return "one-rank"; }),
                 bubbles},
      .plots = {ranks_plot(results.cases, keys_of(results))}};
  keep(findings, compared);
  keep(findings, fastest.others);
  return findings;
}

// All meshes of as many ranks.

std::string mesh_key(int copies, int tensor, int stages) {
  std::string key;
  const auto add = [&](const char* name, int size) {
    if (size > 1) key += fmt::format("{}{}-{}", key.empty() ? "" : "-", name, size);
  };
  add("data", copies);
  add("tensor", tensor);
  add("pipeline", stages);
  return key;
}

std::vector<Case> mesh_cases(const Setting& setting) {
  std::vector<Case> cases = {uncut_case(setting, "one-rank", setting.batch_size)};
  const int ranks = compared_with_one(setting);
  for (int tensor = 1; tensor <= ranks; ++tensor) {
    for (int stages = 1; tensor * stages <= ranks; ++stages) {
      if (ranks == 1 || ranks % (tensor * stages) != 0) continue;
      cases.push_back(new_case(setting, mesh_key(ranks / (tensor * stages), tensor, stages),
                               cut_workload(setting, ranks, tensor, stages)));
    }
  }
  return cases;
}

/// The mesh that needs least memory.
std::string least_memory_fact(const Results& results) {
  const auto bytes = [](const Measurement& each) { return max_rank_bytes(each.workload()); };
  const Measurement& least =
      *std::ranges::min_element(results.cases.begin() + 1, results.cases.end(), {}, bytes);
  return fmt::format(
      "Least memory: {}, {} on a rank at most; one rank alone needs {} (from the "
      "plan).",
      least.what().key, human_bytes(bytes(least)), human_bytes(bytes(results.cases.front())));
}

Findings conclude_mesh(const Results& results) {
  const int ranks = compared_with_one(results.setting);
  const std::vector<std::string> labels = keys_of(results);
  const std::vector<std::string> meshes(labels.begin() + 1, labels.end());
  const std::vector<Comparison> gains = results.compare("one-rank", meshes);
  const Fastest fastest = fastest_of(results.steps_of(meshes), results.setting.margin);
  constexpr std::int64_t kMemoryOfH200 = std::int64_t{141} * 1'000'000'000;
  Findings simulated = best_mesh({}, load_card("h200-nvlink"), 8, kMemoryOfH200);
  Findings findings{
      .sentences = {fastest_sentence(fastest, meshes,
                                     fmt::format("Fastest mesh of {}", counted(ranks, "rank")))},
      .facts = {least_memory_fact(results)},
      .comparisons = gains,
      .tables = {table_of_cuts(results, fmt::format("Meshes of {}", several_words(ranks, "rank")),
                               [](const Measurement&) { return "one-rank"; })},
      .plots = {ranks_plot(results.cases, labels)}};
  for (const Comparison& each : gains) {
    findings.sentences.push_back(sentence_of(each, "with " + each.b, "on one rank"));
  }
  std::ranges::move(simulated.sentences, std::back_inserter(findings.facts));
  std::ranges::move(simulated.tables, std::back_inserter(findings.tables));
  keep(findings, fastest.others);
  return findings;
}

}  // namespace

Experiment tensor_experiment() {
  return {.name = "tensor",
          .title = "Ranks that share every layer",
          .question = "Is it faster to share every layer or the batch, at which batch, and why?",
          .cases = tensor_cases,
          .conclude = conclude_tensor,
          .needs_mpi = true};
}

Experiment pipeline_experiment() {
  return {.name = "pipeline",
          .title = "Stages of a pipeline",
          .question = "How long do stages wait for each other, by schedule and micro-batches?",
          .cases = pipeline_cases,
          .conclude = conclude_pipeline,
          .needs_mpi = true};
}

Experiment mesh_experiment() {
  return {.name = "mesh",
          .title = "A mesh of ranks",
          .question =
              "Copies, tensor ranks, stages, or several of them: which is fastest, and "
              "which needs least memory?",
          .cases = mesh_cases,
          .conclude = conclude_mesh,
          .needs_mpi = true};
}

}  // namespace barestep
