// How DDP reduces gradients: the rungs from one message for each tensor after backward to buckets
// during backward.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "core/units.h"
#include "lab/experiments/all.h"
#include "lab/findings.h"

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
  const WorkloadPrograms programs(workload);
  return std::ranges::count_if(programs.steps().train().program.nodes(), [](const Node& node) {
    const auto* const sum = op_if<AllReduce>(node.op);
    return sum != nullptr && sum->name.starts_with("bucket ");
  });
}

FindingTable ladder_table(const Results& results) {
  FindingTable table{.title = several_words(compared_with_one(results.setting), "rank", true) +
                              " that reduce gradients",
                     .columns = {"case", "reduced", "reductions a step", "a rank sends",
                                 "mean step", "speed against per-tensor", "exposed communication"}};
  for (const ReductionRung& rung : kReductionRungs) {
    const Measurement& each = results.at(rung.key);
    table.rows.push_back({rung.key, rung.words, std::to_string(reductions(each.workload())),
                          human_bytes(mean_sent_bytes(each.workload())), time_text(each.mean_s()),
                          factor_text(results.compare("per-tensor", rung.key).speed()),
                          time_text(each.phase_s("communication"))});
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
      .sentences = {fastest_sentence(fastest, words, "Fastest on " + ranks),
                    sentence_of(gains[0], "with all gradients in one message",
                                "with a message for each tensor"),
                    sentence_of(gains[1], "with messages during backward", "after it"),
                    sentence_of(gains[2], "with buckets during backward",
                                "with one message after it")},
      .facts = {"One message costs its latency once; overlapping hides it behind backward, and "
                "buckets do both."},
      .tables = {ladder_table(results)}};
  keep(findings, gains);
  return findings;
}

}  // namespace

Experiment ddp_ladder_experiment() {
  return {.name = "ddp-ladder",
          .title = "From messages to buckets",
          .question = "What do larger messages, overlap with backward, and both together gain?",
          .cases = ladder_cases,
          .conclude = conclude_ladder,
          .needs_mpi = true};
}

}  // namespace barestep
