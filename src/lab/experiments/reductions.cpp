// How DDP reduces gradients: the rungs from one message for each tensor after backward to buckets
// during backward, and what no_sync() saves.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "core/units.h"
#include "lab/experiments/figures.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

/// A rung: the size that closes a bucket, and whether buckets are reduced during backward.
struct ReductionRung {
  const char* key;
  const char* words;
  double bucket_mib;  // 0: PyTorch's
  bool overlap;
};

constexpr double kEachTensor = 1e-6;  // a byte
constexpr double kOneBucket = 999'999;
constexpr ReductionRung kReductionRungs[] = {
    {"per-tensor", "each tensor after backward", kEachTensor, false},
    {"flat", "all in one message after backward", kOneBucket, false},
    {"overlapped", "each tensor during backward", kEachTensor, true},
    {"buckets", "buckets during backward", 0, true}};

Workload workload_of_ranks(const Setting& setting) {
  Workload workload = ddp_workload(setting, compared_with_one(setting));
  workload.config.training.update = Update::kSeparate;
  return workload;
}

std::vector<Case> ladder_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const ReductionRung& rung : kReductionRungs) {
    Workload workload = workload_of_ranks(setting);
    if (rung.bucket_mib > 0) workload.config.parallel.bucket_mib = rung.bucket_mib;
    workload.config.parallel.overlap = rung.overlap;
    cases.push_back(new_case(setting, rung.key, workload));
  }
  return cases;
}

/// The reductions of gradients in a step.
std::int64_t reductions(const Workload& workload) {
  return std::ssize(bucket_bytes(workload));
}

/// Columns that both tables have, and their cells.
constexpr std::array<const char*, 4> kReductionColumns = {"reductions a step", "a rank sends",
                                                          "mean step", "exposed communication"};

void add_reduction_cells(std::vector<std::string>& row, const Measurement& each) {
  row.insert(row.end(), {std::to_string(reductions(each.workload())),
                         human_bytes(mean_sent_bytes(each.workload())), time_text(each.mean_s()),
                         time_text(each.phase_s("communication"))});
}

FindingTable ladder_table(const Results& results) {
  FindingTable table{.title = several_words(compared_with_one(results.setting), "rank", true) +
                              " that reduce gradients",
                     .columns = {"case", "reduced", "speed against per-tensor"}};
  table.columns.insert(table.columns.end(), kReductionColumns.begin(), kReductionColumns.end());
  for (const ReductionRung& rung : kReductionRungs) {
    const Measurement& each = results.at(rung.key);
    table.rows.push_back(
        {rung.key, rung.words, factor_text(results.compare("per-tensor", rung.key).speed())});
    add_reduction_cells(table.rows.back(), each);
  }
  return table;
}

Findings conclude_ladder(const Results& results) {
  const std::string ranks = several_words(compared_with_one(results.setting), "rank");
  std::vector<std::string> keys, words;
  for (const ReductionRung& rung : kReductionRungs) {
    keys.push_back(rung.key);
    words.push_back(rung.words);
  }
  const Fastest fastest = fastest_of(results.steps_of(keys), results.setting.margin);
  const std::array gains = {results.compare("per-tensor", "flat"),
                            results.compare("per-tensor", "overlapped"),
                            results.compare("flat", "buckets")};
  Findings findings{
      .sentences = {{"fastest", fastest_sentence(fastest, words, "Fastest on " + ranks)},
                    {"flat",
                     sentence_of(gains[0], "with all gradients in one message",
                                 "with a message for each tensor"),
                     gains[0].word},
                    {"overlapped",
                     sentence_of(gains[1], "with messages during backward", "after it"),
                     gains[1].word},
                    {"buckets",
                     sentence_of(gains[2], "with buckets during backward",
                                 "with one message after it"),
                     gains[2].word}},
      .facts = {{"reason",
                 "One message costs its latency once; overlapping hides it behind backward, and "
                 "buckets do both."}},
      .tables = {ladder_table(results)}};
  keep(findings, gains);
  keep(findings, fastest.others);
  return findings;
}

// no_sync(): the same samples in a step, in more and more micro-steps, with the gradients reduced
// once or in each of them.

constexpr std::array kMicroStepCounts = {1, 2, 4, 8};
constexpr int kMaxMicroSteps = kMicroStepCounts.back();

std::string micro_steps_key(int count, bool every) {
  return count == 1 ? "one" : fmt::format("{}-{}", every ? "each" : "once", count);
}

std::vector<Case> no_sync_cases(const Setting& setting) {
  // Every rank has a sample of every micro-step.
  const std::int64_t least = kMaxMicroSteps * compared_with_one(setting);
  const std::int64_t samples =
      std::max(setting.batch_size / kMaxMicroSteps * kMaxMicroSteps, least);
  std::vector<Case> cases;
  for (const int count : kMicroStepCounts) {
    for (const bool every : {false, true}) {
      if (count == 1 && every) continue;  // the same program
      Workload workload = workload_of_ranks(setting);
      workload.config.data.batch_size = samples / count;
      workload.config.training.accumulate = count;
      workload.config.parallel.reduces_every_micro_step = every;
      cases.push_back(new_case(setting, micro_steps_key(count, every), workload));
    }
  }
  return cases;
}

/// Whether more of the communication is exposed.
std::string extra_exposed_sentence(const Results& results, int count) {
  const auto exposed_s = [&](bool every) {
    return results.at(micro_steps_key(count, every)).phase_s_by_start("communication");
  };
  const Estimate more = estimate_by_round(exposed_s(true), exposed_s(false), std::minus<double>());
  const std::string what = fmt::format("a reduction in each of {} micro-steps", count);
  return fmt::format(
      "{}: {} of a step instead of {}.",
      by_side(side_of(more, 0), fmt::format("With {} more communication is exposed", what),
              fmt::format("With {} less communication is exposed", what),
              fmt::format("Whether {} exposes more communication is unclear", what)),
      time_text(estimate_of(exposed_s(true))), time_text(estimate_of(exposed_s(false))));
}

FindingTable no_sync_table(const Results& results) {
  FindingTable table{.title = several_words(compared_with_one(results.setting), "rank", true) +
                              " that accumulate gradients",
                     .columns = {"micro-steps", "reduced", "time against one micro-step"}};
  table.columns.insert(table.columns.end(), kReductionColumns.begin(), kReductionColumns.end());
  for (const Measurement& each : results.cases) {
    const TrainConfig& config = each.workload().config;
    const bool every = config.parallel.reduces_every_micro_step;
    table.rows.push_back({std::to_string(config.training.accumulate),
                          every ? "in each" : "once, as in no_sync()",
                          factor_text(results.compare("one", each.what().key).ratio)});
    add_reduction_cells(table.rows.back(), each);
  }
  return table;
}

Plot no_sync_plot(const Results& results) {
  Plot plot{.title = "A step by its micro-steps",
            .x_label = "micro-steps",
            .y_label = "ms a step",
            .log_x = true};
  for (const bool every : {false, true}) {
    PlotSeries& series = plot.series.emplace_back(
        PlotSeries{.name = every ? "reduced in each" : "reduced once, as in no_sync()"});
    for (const int count : kMicroStepCounts) {
      series.points.push_back(
          plot_point(count, results.at(micro_steps_key(count, every)).mean_s(), 1e3));
    }
  }
  return plot;
}

std::string no_sync_losses(const Results& results) {
  double furthest = 0;
  for (const int count : kMicroStepCounts) {
    const auto steps = [&](bool every) -> const Measurement& {
      return results.at(micro_steps_key(count, every));
    };
    furthest = std::max(furthest, loss_difference(steps(true), steps(false)));
  }
  return fmt::format(
      "If gradients are reduced in each micro-step, losses differ from those with one reduction by "
      "a share of {:.1e} at most{}.",
      furthest,
      is_rounding(furthest) ? ": what has been reduced is the same on all ranks, so the next mean "
                              "over them keeps it"
                            : ", which rounding does not explain");
}

Findings conclude_no_sync(const Results& results) {
  std::vector<Comparison> gains;
  for (const int count : kMicroStepCounts) {
    if (count == 1) continue;
    gains.push_back(results.compare(micro_steps_key(count, true), micro_steps_key(count, false)));
  }
  adjust_together(gains);
  const std::int64_t every =
      mean_sent_bytes(results.at(micro_steps_key(kMaxMicroSteps, true)).workload());
  const std::int64_t once =
      mean_sent_bytes(results.at(micro_steps_key(kMaxMicroSteps, false)).workload());
  Findings findings{
      .facts = {{"bytes", fmt::format("Without no_sync() a rank sends {:.3g} times the bytes in {} "
                                      "micro-steps: {} instead of {} a step.",
                                      times_the_bytes(every, once), kMaxMicroSteps,
                                      human_bytes(every), human_bytes(once))},
                {"losses", no_sync_losses(results)}},
      .tables = {no_sync_table(results)},
      .plots = {no_sync_plot(results), account_plot(results.cases, keys_of(results))}};
  for (std::size_t i = 0; i < gains.size(); ++i) {
    findings.sentences.push_back(
        {gains[i].b,
         sentence_of(gains[i],
                     fmt::format("with one reduction in {} micro-steps", kMicroStepCounts[i + 1]),
                     "with one in each"),
         gains[i].word});
  }
  findings.sentences.push_back({"exposed", extra_exposed_sentence(results, kMaxMicroSteps)});
  keep(findings, gains);
  return findings;
}

}  // namespace

std::vector<std::int64_t> bucket_bytes(const Workload& workload) {
  const WorkloadPrograms programs(workload);
  std::vector<std::int64_t> all;
  for (const Node& node : programs.steps().train().program.nodes()) {
    const auto* const sum = op_if<AllReduce>(node.op);
    if (sum == nullptr || !sum->name.starts_with("bucket ")) continue;
    all.push_back(cost_of(node.op).message_bytes);
  }
  return all;
}

Experiment ddp_ladder_experiment() {
  return {.name = "ddp-ladder",
          .title = "From messages to buckets",
          .question = "What do larger messages, overlap with backward, and both together gain?",
          .cases = ladder_cases,
          .conclude = conclude_ladder,
          .names = "fastest reason table",
          .needs_mpi = true};
}

Experiment no_sync_experiment() {
  return {.name = "no-sync",
          .title = "Accumulating without no_sync()",
          .question = "What does it cost to reduce gradients in each micro-step?",
          .cases = no_sync_cases,
          .conclude = conclude_no_sync,
          .names = "exposed bytes losses table plot phases-plot",
          .needs_mpi = true};
}

}  // namespace barestep
