// What it costs and saves to cut a model's list of layers into stages on ranks of their own, and
// copies of a model in stages.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/units.h"
#include "lab/experiments/findings_of.h"
#include "lab/predict/schedule_check.h"
#include "train/pass_schedule.h"

namespace barestep {
namespace {

/// Stages have a layer at least and do not recompute.
Workload cut_workload(const Setting& setting, int ranks) {
  return with(
      ddp_workload(setting, ranks),
      fmt::format("--recompute 1 --depth {}", std::max<std::int64_t>(setting.depth, ranks)));
}

std::string max_bytes(const Results& results, const std::string& key) {
  return human_bytes(max_rank_bytes(results.at(key).workload()));
}

PipelineSpec pipeline_of(const Measurement& measured) {
  const ParallelConfig& parallel = measured.workload().config.parallel;
  return {static_cast<int>(parallel.pipeline),
          parallel.micro_batches ? static_cast<int>(*parallel.micro_batches) : 1,
          parallel.schedule};
}

/// What a stage of equally long passes waits; empty without stages.
Column ideal_waits() {
  return {"equal stages (calculated)", [](const Measurement& measured) -> std::string {
            return measured.workload().config.parallel.pipeline == 1
                       ? ""
                       : percent_text(ideal_bubble(pipeline_of(measured)));
          }};
}

// Stages, by schedule and micro-batches.

std::vector<std::pair<std::string, PipelineSpec>> pipelines_of(const Setting& setting) {
  using enum PipelineSchedule;
  const int stages = compared_with_one(setting), most = 4 * stages;
  std::vector<std::pair<std::string, PipelineSpec>> all = {{"naive", {stages, 1, kNaive}}};
  for (const int count : {stages, 2 * stages, most}) {
    all.push_back({fmt::format("1f1b-{}", count), {stages, count, kOneForwardOneBackward}});
  }
  all.push_back({fmt::format("gpipe-{}", most), {stages, most, kGPipe}});
  all.push_back({fmt::format("zb-h1-{}", most), {stages, most, kZeroBubbleH1}});
  return all;
}

std::vector<Case> pipeline_cases(const Setting& setting) {
  const Workload run = with(cut_workload(setting, compared_with_one(setting)),
                            fmt::format("--batch-size {}", setting.scaling_batch_size));
  Workload alone = run;
  alone.ranks = 1;
  std::vector<Case> cases = {new_case(setting, "one-rank", alone)};
  for (const auto& [key, spec] : pipelines_of(setting)) {
    cases.push_back(
        new_case(setting, key,
                 with(run, fmt::format("--pipeline {} --schedule {} --micro-batches {}",
                                       spec.stages, name_of(spec.schedule), spec.micro_batches))));
  }
  return cases;
}

/// The measured bubble beside that of equal stages, and 1F1B's beside GPipe's.
void add_bubbles(FindingsOf& all, const Measurement& measured, const Measurement& gpipe) {
  const double ideal = ideal_bubble(pipeline_of(measured));
  const auto waits = [](const Measurement& of) { return percent_text(waiting_share(of)); };
  const Estimate share = waiting_share(measured);
  all.judge("bubble", share, ideal,
            {"Stages wait longer than equal ones would",
             "Stages wait less than equal ones would, of a step with the optimizer's work besides",
             "Stages wait about as long as equal ones would"},
            fmt::format("{} of a step in {}, and {} of equal stages (calculated)", waits(measured),
                        measured.what().key, percent_text(ideal)));
  const Estimate of_gpipe = waiting_share(gpipe);
  all.judge("bubbles",
            {share.median - of_gpipe.median, share.low - of_gpipe.high, share.high - of_gpipe.low},
            0,
            {"Stages wait longer with 1F1B, since they are not equal and messages take time",
             "Stages wait less with 1F1B, since they are not equal and messages take time",
             "Stages wait as long with both, as far as can be seen"},
            fmt::format("{} of a step with GPipe and {} with 1F1B", waits(gpipe), waits(measured)));
}

/// The passes of a stage in each schedule.
std::string order_text() {
  std::vector<std::string> lists;
  for (const auto& [words, schedule] : {std::pair{"naive", PipelineSchedule::kNaive},
                                        {"GPipe", PipelineSchedule::kGPipe},
                                        {"1F1B", PipelineSchedule::kOneForwardOneBackward}}) {
    std::string& list = lists.emplace_back(words);
    const WrittenSchedule written = built_in_schedule({2, 4, schedule}, {}, false);
    for (const ScheduleEntry& entry : written.stages.front()) list += " " + entry.text;
  }
  return fmt::format("Stage 0 of 2, with 4 micro-batches: {}.", fmt::join(lists, "; "));
}

/// GPipe beside 1F1B, by running the lists of both.
std::string equal_bubbles_text() {
  using enum PipelineSchedule;
  int equal = 0, all = 0, most_kept = 0, most_micro_batches = 0;
  for (int stages = 2; stages <= 8; ++stages) {
    for (const int times : {1, 2, 3, 4}) {
      const int count = times * stages;
      const ScheduleFindings gpipe = examine(built_in_schedule({stages, count, kGPipe}, {}, false));
      const ScheduleFindings in_turn =
          examine(built_in_schedule({stages, count, kOneForwardOneBackward}, {}, false));
      ++all;
      equal += gpipe.step == in_turn.step ? 1 : 0;
      most_kept = std::ranges::max(in_turn.kept);
      most_micro_batches = std::ranges::max(gpipe.kept);
    }
  }
  return fmt::format(
      "In {} of {} pipelines of 2 to 8 stages that take equally long, GPipe and 1F1B need the same "
      "time; with {} micro-batches, the largest number here, a stage of 1F1B keeps {} of them at "
      "most, one of GPipe {} (calculated from their lists).",
      equal, all, most_micro_batches, most_kept, most_micro_batches);
}

Findings pipeline_findings(const Results& results) {
  const auto pipelines = pipelines_of(results.setting);
  std::vector<std::string> keys;
  for (const auto& [key, spec] : pipelines) keys.push_back(key);
  const auto& [most, spec] = *(pipelines.end() - 3);  // micro-batches, of 1f1b
  const std::string& gpipe = (pipelines.end() - 2)->first;
  const std::string& split = pipelines.back().first;
  const std::string with_most = "with " + most, stages = several_words(spec.stages, "stage");
  const double furthest = last_loss_difference(results.cases, results.at("naive"));
  FindingsOf all(results);
  all.fastest("Fastest of the pipelines", keys);
  add_bubbles(all, results.at(most), results.at(gpipe));
  return all
      .compare({{"naive", most, with_most, "with naive", "against-naive"},
                {"one-rank", most, with_most + " on " + stages, "on one rank", "against-one-rank"},
                {most, split, "with " + split, with_most, "zero-bubble"},
                {gpipe, most, with_most, "with " + gpipe, "against-gpipe"}},
               {.as_family = false})
      .untimed("ideal-bubble", fmt::format("Of equal stages it is {} of a step with naive, and {} "
                                           "with {} micro-batches (calculated).",
                                           percent_text(ideal_bubble(pipelines.front().second)),
                                           percent_text(ideal_bubble(spec)), spec.micro_batches))
      .untimed("memory",
               fmt::format("With {} a rank needs {} at most, with {} {}: it keeps the activations "
                           "of fewer micro-batches (from the plan).",
                           most, max_bytes(results, most), gpipe, max_bytes(results, gpipe)))
      .untimed("losses",
               fmt::format("{}: the last losses differ from naive's by a share of {} at most.",
                           is_rounding(furthest) ? "The schedule does not change the losses"
                                                 : "The schedule changes the losses",
                           share_text(furthest)))
      .untimed("order", order_text())
      .untimed("equal-bubbles", equal_bubbles_text())
      .table(several_words(spec.stages, "stage", true), {"case",
                                                         "time",
                                                         {"speed-up", "speed against one rank"},
                                                         "waits",
                                                         ideal_waits(),
                                                         "sends",
                                                         "optimizer",
                                                         "max-memory"})
      .phases_of_ranks();
}

// Copies of the model in stages (hybrid parallelism), beside copies that are on one rank each.

constexpr int kHybridSize = 2;  // copies, and stages of each
constexpr std::array kHybridMicroBatches = {2, 4, 8};
constexpr int kUsualMicroBatches = 4;

/// Every copy has as many samples of every micro-batch, of half of the batch too.
std::int64_t hybrid_batch(const Setting& setting) {
  constexpr std::int64_t kMinBatch = 2 * kHybridSize * kHybridMicroBatches.back();
  return std::max(setting.batch_size / kMinBatch * kMinBatch, kMinBatch);
}

struct Hybrid {
  int copies = kHybridSize, stages = kHybridSize;
  int micro_batches = kUsualMicroBatches;
  std::int64_t batch_size = 0;

  [[nodiscard]] std::string key() const {
    return fmt::format("{}x{}-batch-{}-micro-{}", copies, stages, batch_size, micro_batches);
  }
  [[nodiscard]] std::string words() const {
    return fmt::format("with {} of the model{}", copies == 1 ? "one copy" : "two copies",
                       stages == 1   ? ", all layers on one rank"
                       : copies == 1 ? " in two stages"
                                     : " in two stages each");
  }
};

/// Those of the usual batch by micro-batches, then by batches, then other places of the stages.
std::vector<Hybrid> hybrids_of(const Setting& setting) {
  const std::int64_t usual = hybrid_batch(setting);
  std::vector<Hybrid> all;
  for (const int count : kHybridMicroBatches) {
    all.push_back({.micro_batches = count, .batch_size = usual});
  }
  for (const std::int64_t batch : {usual / 2, 2 * usual}) all.push_back({.batch_size = batch});
  for (const auto& [copies, stages] : {std::pair{2, 1}, {1, 2}, {1, 1}}) {
    all.push_back({.copies = copies, .stages = stages, .batch_size = usual});
  }
  return all;
}

/// Without stages a rank has the whole model, and accumulates as many micro-steps.
std::vector<Case> hybrid_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const Hybrid& hybrid : hybrids_of(setting)) {
    const std::string options =
        hybrid.stages > 1 ? fmt::format("--pipeline {} --micro-batches {} --batch-size {}",
                                        hybrid.stages, hybrid.micro_batches, hybrid.batch_size)
                          : fmt::format("--accumulate {} --batch-size {}", hybrid.micro_batches,
                                        hybrid.batch_size / hybrid.micro_batches);
    cases.push_back(
        new_case(setting, hybrid.key(),
                 with(cut_workload(setting, hybrid.copies * hybrid.stages),
                      fmt::format("--update separate --depth {} {}",
                                  std::max<std::int64_t>(setting.depth, kHybridSize), options))));
  }
  return cases;
}

/// Which ranks have which stage and which copy, and what they exchange when.
void add_hybrid(const Results& results, FindingsOf& all) {
  const Hybrid hybrid{.batch_size = hybrid_batch(results.setting)};
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
  all.untimed("ranks", fmt::format("Of {}, {}, each of another copy: {} and {} are the first copy.",
                                   counted(mesh.ranks(), "rank"), list_text(stages), mesh.rank,
                                   mesh.ranks_on(Axis::kPipeline).back()));
  all.untimed("exchanges",
              fmt::format("In a step of {} micro-batches a rank of stage 0 exchanges {} with the "
                          "other stage of its copy, and {} with the other copy (counted in the "
                          "program): gradients of the {} of a stage are summed once a step, in its "
                          "last backward pass; stage {} begins while stage 0 still computes.",
                          hybrid.micro_batches, counted(exchanges, "time"), counted(sums, "time"),
                          counted(mesh.data, "rank"), mesh.with_rank(mesh.ranks() - 1).stage()));
}

Findings hybrid_findings(const Results& results) {
  const std::vector<Hybrid> hybrids = hybrids_of(results.setting);
  FindingsOf all(results);
  add_hybrid(results, all);
  if (!results.at(hybrids.front().key()).what().beyond_cores) {
    std::vector<std::string> keys, words;
    for (const Hybrid& hybrid : std::span(hybrids).first(kHybridMicroBatches.size())) {
      keys.push_back(hybrid.key());
      words.push_back(counted(hybrid.micro_batches, "micro-batch"));
    }
    all.fastest("Fastest with two copies of two stages", keys, words);
  }
  const auto pair = [&](int copies_a, int stages_a, int copies_b, int stages_b) {
    const Hybrid a{.copies = copies_a, .stages = stages_a, .batch_size = hybrids[0].batch_size};
    const Hybrid b{.copies = copies_b, .stages = stages_b, .batch_size = hybrids[0].batch_size};
    return Compared{a.key(), b.key(), b.words(), a.words(),
                    fmt::format("{}x{}-against-{}x{}", copies_b, stages_b, copies_a, stages_a)};
  };
  all.compare({pair(1, 1, 1, 2), pair(2, 1, 2, 2), pair(1, 2, 2, 2)}, {.within_cores = true});
  if (all.comparisons().empty()) {
    all.untimed("not-compared",
                fmt::format("Two stages have too few {} here, so times are not compared.",
                            units_word(results.setting)));
  }
  const auto number = [](std::int64_t (*of)(const Workload&)) {
    return [=](const Measurement& measured) { return std::to_string(of(measured.workload())); };
  };
  return all
      .table("Copies of the model and their stages",
             {"ranks",
              {"copies", number([](const Workload& run) -> std::int64_t {
                 return run.ranks / run.config.parallel.pipeline;
               })},
              {"stages", number([](const Workload& run) { return run.config.parallel.pipeline; })},
              "batch",
              {"micro-batches", number([](const Workload& run) -> std::int64_t {
                 return run.config.parallel.micro_batches.value_or(
                     static_cast<int>(run.config.training.accumulate));
               })},
              "time",
              "samples-per-s",
              "waits",
              ideal_waits(),
              "sends",
              "max-memory",
              "beyond"})
      .phases_of_ranks()
      .simulated({4}, {"case", {"time", "step"}, "samples-per-s", "speed-up", "waits"});
}

}  // namespace

Experiment pipeline_experiment() {
  return {"pipeline",
          "Stages of a pipeline",
          "How long do stages wait for each other, by schedule and micro-batches?",
          pipeline_cases,
          pipeline_findings,
          "fastest against-naive against-one-rank bubble bubbles ideal-bubble zero-bubble "
          "against-gpipe memory losses order equal-bubbles table phases-plot"};
}

Experiment hybrid_experiment() {
  return {"hybrid",
          "Copies of a model in stages",
          "What do two copies of two stages gain, with how many micro-batches?",
          hybrid_cases,
          hybrid_findings,
          "fastest 1x2-against-1x1 2x2-against-2x1 2x2-against-1x2 ranks exchanges simulated-* "
          "not-compared table simulated-table phases-plot"};
}

}  // namespace barestep
