// What it costs and saves to cut a model among ranks: every layer, the list of layers, or both,
// beside sharing the batch; and copies of a model in stages.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "core/index.h"
#include "core/units.h"
#include "lab/experiments/figures.h"
#include "lab/predict/mesh_search.h"
#include "lab/predict/prediction.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"
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
      .name = "simulated-table",
      .columns = {"ranks", "ddp", "speed-up", "tensor", "speed-up"}};
  const double one_s = predicted_step({}, card, 1).step_s;
  for (const int ranks : {1, 2, 4, 8}) {
    const double ddp_s = predicted_step({}, card, ranks).step_s;
    const double tensor_s = predicted_step(asked_run({{"scheme", "tensor"}}), card, ranks).step_s;
    table.rows.push_back({std::to_string(ranks), time_text(ddp_s), factor_text(one_s / ddp_s),
                          time_text(tensor_s), factor_text(one_s / tensor_s)});
    if (ranks != 4) continue;
    const auto sent = [&](const Run& asked) {
      return human_bytes(mean_sent_bytes(run_on(asked, card, ranks)));
    };
    findings.facts.push_back(
        {"simulated-4",
         fmt::format("Simulated: 8192 x 6 at batch 64 on 4 of {}: tensor ranks are {} as fast as "
                     "one rank, ddp {}. A tensor rank updates a quarter of the weights and sends "
                     "{} a step; a rank of ddp updates all of them and sends {}.",
                     card.name, factor_text(one_s / tensor_s), factor_text(one_s / ddp_s),
                     sent(asked_run({{"scheme", "tensor"}})), sent({}))});
  }
  findings.tables.push_back(std::move(table));
}

Findings conclude_tensor(const Results& results) {
  const std::string ranks = several_words(compared_with_one(results.setting), "rank");
  Findings findings;
  for (const std::int64_t batch : batches_of(results.setting)) {
    for (const char* const other : {"ddp", "one-rank"}) {
      findings.comparisons.push_back(
          results.compare(key_at(other, batch), key_at("tensor", batch)));
    }
    findings.facts.push_back({key_at("sent", batch), sent_fact(results, batch)});
  }
  adjust_together(findings.comparisons);
  for (const Comparison& each : findings.comparisons) {
    const bool is_of_ddp = each.a.starts_with("ddp");
    const std::int64_t batch = results.at(each.b).workload().batch_size();
    findings.sentences.push_back(
        {key_at(is_of_ddp ? "against-ddp" : "against-one-rank", batch),
         sentence_of(each, fmt::format("at batch {} with every layer shared by {}", batch, ranks),
                     is_of_ddp ? "with the batch shared" : "on one rank"),
         each.word});
  }
  const auto batch_of = [](const Measurement& each) { return each.workload().batch_size(); };
  const std::int64_t batch = results.setting.batch_size;
  findings.facts.push_back(
      {"memory",
       fmt::format("A rank needs {} if it has a part of every layer, {} if it has them all (from "
                   "the plan).",
                   human_bytes(max_rank_bytes(results.at(key_at("tensor", batch)).workload())),
                   human_bytes(max_rank_bytes(results.at(key_at("ddp", batch)).workload())))});
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
                       .name = "waits-table",
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
      .sentences = {{"fastest", fastest_sentence(fastest, keys, "Fastest of the pipelines")},
                    {"against-naive", sentence_of(compared[0], "with " + most.key, "with naive"),
                     compared[0].word},
                    {"against-one-rank",
                     sentence_of(compared[1], "with " + most.key + " on " + stages, "on one rank"),
                     compared[1].word},
                    {"bubble", bubble_sentence(results.at(most.key), most.spec)},
                    {"zero-bubble", sentence_of(compared[2], "with " + split, "with " + most.key),
                     compared[2].word},
                    {"against-gpipe", sentence_of(compared[3], "with " + most.key, "with " + gpipe),
                     compared[3].word}},
      .facts = {{"memory",
                 fmt::format("With {} a rank needs {} at most, with {} {}: it keeps the "
                             "activations of fewer micro-batches (from the plan).",
                             most.key, human_bytes(max_rank_bytes(results.at(most.key).workload())),
                             gpipe, human_bytes(max_rank_bytes(results.at(gpipe).workload())))}},
      .tables = {table_of_cuts(results, several_words(most.spec.stages, "stage", true),
                               [](const Measurement&) { return "one-rank"; }),
                 bubbles},
      .plots = {ranks_plot(results.cases, keys_of(results))}};
  keep(findings, compared);
  keep(findings, fastest.others);
  return findings;
}

// Copies of the model in stages (hybrid parallelism), beside copies that are on one rank each.

constexpr int kHybridSize = 2;  // copies, and stages of each
constexpr std::array kHybridMicroBatches = {2, 4, 8};
constexpr int kUsualMicroBatches = 4;

std::array<std::int64_t, 3> hybrid_batches(const Setting& setting) {
  // Every copy has as many samples of every micro-batch, of half of the batch too.
  constexpr std::int64_t kMinBatch = 2 * kHybridSize * kHybridMicroBatches.back();
  const std::int64_t usual = std::max(setting.batch_size / kMinBatch * kMinBatch, kMinBatch);
  return {usual / 2, usual, 2 * usual};
}

struct Hybrid {
  int copies = kHybridSize, stages = kHybridSize;
  int micro_batches = kUsualMicroBatches;
  std::int64_t batch_size = 0;

  [[nodiscard]] std::string key() const {
    return fmt::format("{}x{}-batch-{}-micro-{}", copies, stages, batch_size, micro_batches);
  }
};

/// Without stages a rank has the whole model, and accumulates as many micro-steps.
Case hybrid_case(const Setting& setting, const Hybrid& hybrid) {
  Workload workload = cut_workload(setting, hybrid.copies * hybrid.stages, 1, hybrid.stages);
  workload.config.model.depth = std::max<std::int64_t>(setting.depth, kHybridSize);
  workload.config.training.update = Update::kSeparate;
  workload.config.data.batch_size = hybrid.batch_size;
  if (hybrid.stages > 1) {
    workload.config.parallel.micro_batches = hybrid.micro_batches;
  } else {
    workload.config.data.batch_size /= hybrid.micro_batches;
    workload.config.training.accumulate = hybrid.micro_batches;
  }
  return new_case(setting, hybrid.key(), workload);
}

/// Those of the usual batch by micro-batches, then by batches, then other places of the stages.
std::vector<Hybrid> hybrids_of(const Setting& setting) {
  const auto [small, usual, large] = hybrid_batches(setting);
  std::vector<Hybrid> all;
  for (const int count : kHybridMicroBatches) {
    all.push_back({.micro_batches = count, .batch_size = usual});
  }
  for (const std::int64_t batch : {small, large}) all.push_back({.batch_size = batch});
  for (const auto& [copies, stages] : {std::pair{2, 1}, {1, 2}, {1, 1}}) {
    all.push_back({.copies = copies, .stages = stages, .batch_size = usual});
  }
  return all;
}

std::vector<Case> hybrid_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const Hybrid& each : hybrids_of(setting)) cases.push_back(hybrid_case(setting, each));
  return cases;
}

std::string hybrid_words(const Hybrid& hybrid) {
  return fmt::format("with {} of the model{}", hybrid.copies == 1 ? "one copy" : "two copies",
                     hybrid.stages == 1   ? ", all layers on one rank"
                     : hybrid.copies == 1 ? " in two stages"
                                          : " in two stages each");
}

FindingTable hybrid_table(const Results& results) {
  FindingTable table{.title = "Copies of the model and their stages",
                     .columns = {"ranks", "copies", "stages", "batch", "micro-batches", "mean step",
                                 "samples/s", "waits for other ranks", "equal stages (calculated)",
                                 "a rank sends", "memory of a rank, at most", ""}};
  for (const Hybrid& hybrid : hybrids_of(results.setting)) {
    const Measurement& each = results.at(hybrid.key());
    const PipelineSpec spec{.stages = hybrid.stages, .micro_batches = hybrid.micro_batches};
    table.rows.push_back({std::to_string(each.ranks()), std::to_string(hybrid.copies),
                          std::to_string(hybrid.stages), std::to_string(hybrid.batch_size),
                          std::to_string(hybrid.micro_batches), time_text(each.mean_s()),
                          number_text(each.samples_per_s().median),
                          percent_text(waiting_share(each)),
                          hybrid.stages == 1 ? "" : percent_text(ideal_bubble(spec)),
                          human_bytes(mean_sent_bytes(each.workload())),
                          human_bytes(max_rank_bytes(each.workload())), beyond_text(each)});
  }
  return table;
}

/// Which ranks have which stage and which copy, and what they exchange when.
std::vector<Finding> hybrid_facts(const Results& results) {
  const Hybrid hybrid{.batch_size = hybrid_batches(results.setting)[1]};
  const Workload& workload = results.at(hybrid.key()).workload();
  const Mesh mesh = mesh_of(workload);
  std::vector<std::string> stages;
  for (int stage = 0; stage < mesh.pipeline; ++stage) {
    std::vector<std::string> ranks;
    for (const int rank : mesh.with_rank(stage * mesh.ranks_of_stage()).ranks_on(Axis::kData)) {
      ranks.push_back(std::to_string(rank));
    }
    stages.push_back(fmt::format("ranks {} have stage {}", list_text(ranks), stage));
  }
  int exchanges = 0, sums = 0;
  const WorkloadPrograms programs(workload);
  for (const Node& node : programs.step().nodes()) {
    exchanges += op_if<SendReceive>(node.op) != nullptr;
    const auto* const sum = op_if<AllReduce>(node.op);
    sums += sum != nullptr && sum->axis == Axis::kData;
  }
  const Mesh last = mesh.with_rank(mesh.ranks() - 1);
  return {
      {"ranks", fmt::format("Of {}, {}, each of another copy: {} and {} are the first copy.",
                            counted(mesh.ranks(), "rank"), list_text(stages), mesh.rank,
                            mesh.ranks_on(Axis::kPipeline).back())},
      {"exchanges",
       fmt::format("In a step of {} micro-batches a rank of stage 0 exchanges {} with the other "
                   "stage of its copy, and {} with the other copy (counted in the program): "
                   "gradients of the {} of a stage are summed once a step, in its last backward "
                   "pass; stage {} begins while stage 0 still computes.",
                   hybrid.micro_batches, counted(exchanges, "time"), counted(sums, "time"),
                   counted(mesh.data, "rank"), last.stage())}};
}

/// On a machine with fast links: the course's model.
void add_simulated_hybrid(Findings& findings) {
  const MachineCard card = load_card("h200-nvlink");
  FindingTable table{.title = fmt::format("Simulated: 8192 x 6 on {}, step times", card.name),
                     .name = "simulated-table",
                     .columns = {"batch"}};
  for (const int count : kHybridMicroBatches) {
    table.columns.push_back(fmt::format("2 copies of 2 stages, {} micro-batches", count));
  }
  table.columns.insert(table.columns.end(), {"2 copies of one rank each", "one copy of 2 stages"});
  for (const std::int64_t batch : {32, 64, 128}) {
    const auto step_s = [&](int ranks, std::int64_t stages, std::optional<int> micro_batches) {
      Run asked;
      asked.config.data.batch_size = batch;
      asked.config.parallel.pipeline = stages;
      asked.config.parallel.micro_batches = micro_batches;
      return predicted_step(asked, card, ranks).step_s;
    };
    std::vector<double> all_s;
    for (const int count : kHybridMicroBatches) all_s.push_back(step_s(4, 2, count));
    all_s.push_back(step_s(2, 1, {}));
    all_s.push_back(step_s(2, 2, kUsualMicroBatches));
    std::vector<std::string>& row = table.rows.emplace_back(1, std::to_string(batch));
    for (const double each_s : all_s) row.push_back(time_text(each_s));
    const auto of_stages = std::span(all_s).first(kHybridMicroBatches.size());
    const auto best = std::ranges::min_element(of_stages) - of_stages.begin();
    findings.facts.push_back(
        {key_at("simulated", batch),
         fmt::format("Simulated: 8192 x 6 at batch {} on {}: two copies of two stages are fastest "
                     "with {} micro-batches, and {} as fast as two copies of one rank each.",
                     batch, card.name, at(kHybridMicroBatches, best),
                     factor_text(all_s[kHybridMicroBatches.size()] / at(all_s, best)))});
  }
  findings.tables.push_back(std::move(table));
}

Findings conclude_hybrid(const Results& results) {
  const std::vector<Hybrid> all = hybrids_of(results.setting);
  const auto is_here = [&](const Hybrid& hybrid) {
    return !results.at(hybrid.key()).what().beyond_cores;
  };
  Findings findings{.facts = hybrid_facts(results)};
  if (is_here(all.front())) {
    std::vector<std::string> keys, words;
    for (const Hybrid& each : std::span(all).first(kHybridMicroBatches.size())) {
      keys.push_back(each.key());
      words.push_back(counted(each.micro_batches, "micro-batch"));
    }
    const Fastest fastest = fastest_of(results.steps_of(keys), results.setting.margin);
    findings.sentences.push_back(
        {"fastest", fastest_sentence(fastest, words, "Fastest with two copies of two stages")});
    keep(findings, fastest.others);
  }
  const std::int64_t usual = hybrid_batches(results.setting)[1];
  const auto place = [&](int copies, int stages) {
    return Hybrid{.copies = copies, .stages = stages, .batch_size = usual};
  };
  std::vector<std::pair<Hybrid, Hybrid>> pairs = {
      {place(1, 1), place(1, 2)}, {place(2, 1), place(2, 2)}, {place(1, 2), place(2, 2)}};
  std::erase_if(pairs,
                [&](const auto& pair) { return !is_here(pair.first) || !is_here(pair.second); });
  std::vector<Comparison> gains;
  for (const auto& [from, to] : pairs) gains.push_back(results.compare(from.key(), to.key()));
  adjust_together(gains);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto& [from, to] = pairs[i];
    findings.sentences.push_back(
        {fmt::format("{}x{}-against-{}x{}", to.copies, to.stages, from.copies, from.stages),
         sentence_of(gains[i], hybrid_words(to), hybrid_words(from)), gains[i].word});
  }
  keep(findings, gains);
  if (gains.empty()) {
    findings.facts.push_back(
        {"not-compared", fmt::format("Two stages have too few {} here, so times are not compared.",
                                     units_word(results.setting))});
  }
  findings.tables = {hybrid_table(results)};
  findings.plots = {ranks_plot(results.cases, keys_of(results))};
  add_simulated_hybrid(findings);
  return findings;
}

}  // namespace

Experiment tensor_experiment() {
  return {.name = "tensor",
          .title = "Ranks that share every layer",
          .question = "Is it faster to share every layer or the batch, at which batch, and why?",
          .cases = tensor_cases,
          .conclude = conclude_tensor,
          .names =
              "against-ddp-* against-one-rank-* sent-* memory simulated-4 "
              "table simulated-table phases-plot",
          .needs_mpi = true};
}

Experiment pipeline_experiment() {
  return {.name = "pipeline",
          .title = "Stages of a pipeline",
          .question = "How long do stages wait for each other, by schedule and micro-batches?",
          .cases = pipeline_cases,
          .conclude = conclude_pipeline,
          .names =
              "fastest against-naive against-one-rank bubble zero-bubble "
              "against-gpipe memory table waits-table phases-plot",
          .needs_mpi = true};
}

Experiment hybrid_experiment() {
  return {.name = "hybrid",
          .title = "Copies of a model in stages",
          .question = "What do two copies of two stages gain, with how many micro-batches?",
          .cases = hybrid_cases,
          .conclude = conclude_hybrid,
          .names =
              "fastest 1x2-against-1x1 2x2-against-2x1 2x2-against-1x2 ranks exchanges simulated-* "
              "not-compared "
              "table simulated-table phases-plot",
          .needs_mpi = true};
}

}  // namespace barestep
