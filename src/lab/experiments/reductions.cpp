// How DDP reduces gradients: the rungs from one message for each tensor after backward to buckets
// during backward, what no_sync() saves, and accumulation and mixed precision together.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "core/units.h"
#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

/// The size that closes a bucket, a byte or more than all gradients, and whether buckets are
/// reduced during backward.
const std::vector<CaseRow> kReductionRungs = {
    {"per-tensor", "each tensor after backward", "--bucket-mib 1e-06 --no-overlap"},
    {"flat", "all in one message after backward", "--bucket-mib 999999 --no-overlap"},
    {"overlapped", "each tensor during backward", "--bucket-mib 1e-06"},
    {"buckets-4", "buckets of 4 MiB during backward", "--bucket-mib 4"},
    {"buckets-12", "buckets of 12 MiB during backward", "--bucket-mib 12"},
    {"buckets", "buckets of 25 MiB during backward"}};

Workload reducing_workload(const Setting& setting) {
  return with(ddp_workload(setting, compared_with_one(setting)), "--update separate");
}

std::string several_ranks(const Results& results, bool is_first) {
  return several_words(compared_with_one(results.setting), "rank", is_first);
}

/// The buckets of gradients that DDP's step reduces.
Column reductions_of_step() {
  return {"reductions a step", [](const Measurement& measured) {
            const WorkloadPrograms programs(measured.workload());
            return std::to_string(std::ranges::count_if(
                programs.steps().train().program.nodes(), [](const Node& node) {
                  const auto* const sum = op_if<AllReduce>(node.op);
                  return sum != nullptr && sum->name.starts_with("bucket ");
                }));
          }};
}

Findings ladder_findings(const Results& results) {
  std::vector<std::string> words;
  for (const CaseRow& rung : kReductionRungs) words.push_back(rung.words);
  FindingsOf all(results);
  all.fastest("Fastest on " + several_ranks(results, false), keys_of(results), words);
  return all
      .compare({{"per-tensor", "flat", "with all gradients in one message",
                 "with a message for each tensor"},
                {"per-tensor", "overlapped", "with messages during backward", "after it"},
                {"flat", "buckets", "with buckets during backward", "with one message after it"}},
               {.as_family = false})
      .untimed("reason",
               "One message costs its latency once; overlapping hides it behind backward, and "
               "buckets do both.")
      .table(several_ranks(results, true) + " that reduce gradients",
             {"case",
              {"reduced",
               [&](const Measurement& measured) {
                 return words[static_cast<std::size_t>(&measured - results.cases.data())];
               }},
              speed_against("per-tensor", "speed against per-tensor"),
              reductions_of_step(),
              "sends",
              "time",
              "communication"});
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
  std::vector<CaseRow> rows;
  for (const int count : kMicroStepCounts) {
    for (const bool every : {false, true}) {
      if (count == 1 && every) continue;  // the same program
      rows.push_back({micro_steps_key(count, every), "",
                      fmt::format("--batch-size {} --accumulate {}{}", samples / count, count,
                                  every ? " --reduce-every-micro-step" : "")});
    }
  }
  return cases_of(setting, reducing_workload(setting), rows);
}

bool reduces_in_each(const Measurement& measured) {
  return measured.workload().config.parallel.reduces_every_micro_step;
}

Findings no_sync_findings(const Results& results) {
  const auto steps = [&](int count, bool every) -> const Measurement& {
    return results.at(micro_steps_key(count, every));
  };
  const auto sent = [&](bool every) {
    return mean_sent_bytes(steps(kMaxMicroSteps, every).workload());
  };
  const auto exposed_s = [&](bool every) {
    return steps(kMaxMicroSteps, every).phase_s_by_start("communication");
  };
  double furthest = 0;
  std::vector<Compared> pairs;
  for (const int count : kMicroStepCounts) {
    furthest = std::max(furthest, loss_difference(steps(count, true), steps(count, false)));
    if (count == 1) continue;
    pairs.push_back({micro_steps_key(count, true), micro_steps_key(count, false),
                     fmt::format("with one reduction in {} micro-steps", count),
                     "with one in each"});
  }
  return FindingsOf(results)
      .compare(pairs)
      .judge(
          "exposed", estimate_by_round(exposed_s(true), exposed_s(false), std::minus<double>()), 0,
          {"With a reduction in each micro-step more communication is exposed",
           "With a reduction in each micro-step less communication is exposed",
           "Whether a reduction in each micro-step exposes more communication is unclear"},
          fmt::format("{} of a step of {} instead of {}", time_text(estimate_of(exposed_s(true))),
                      kMaxMicroSteps, time_text(estimate_of(exposed_s(false)))))
      .untimed("bytes", fmt::format("Without no_sync() a rank sends {:.3g} times the bytes in {} "
                                    "micro-steps: {} instead of {} a step.",
                                    times_the_bytes(sent(true), sent(false)), kMaxMicroSteps,
                                    human_bytes(sent(true)), human_bytes(sent(false))))
      .untimed("losses",
               fmt::format("If gradients are reduced in each micro-step, losses differ from those "
                           "with one reduction by a share of {} at most{}.",
                           share_text(furthest),
                           is_rounding(furthest) ? ": what has been reduced is the same on all "
                                                   "ranks, so the next mean over them keeps it"
                                                 : ", which rounding does not explain"))
      .table(several_ranks(results, true) + " that accumulate gradients",
             {"micro-steps",
              {"reduced",
               [](const Measurement& measured) {
                 return reduces_in_each(measured) ? "in each" : "once, as in no_sync()";
               }},
              {"time against one micro-step",
               [&](const Measurement& measured) {
                 return factor_text(results.compare("one", measured.what().key).ratio);
               }},
              reductions_of_step(),
              "sends",
              "time",
              "communication"})
      .phases();
}

// Accumulation, mixed precision, and both: what each saves in time and memory, and whether training
// stays as steady as in fp32.

bool is_fp16(const Measurement& measured) {
  return measured.workload().config.device.precision == Precision::kFp16;
}

std::string accumulated_key(bool is_fp16, int micro_steps) {
  if (micro_steps == 1) return is_fp16 ? "amp" : "ddp";
  return fmt::format("{}-{}", is_fp16 ? "both" : "accumulate", micro_steps);
}

/// On the CPU, micro-steps of the course's size would take the experiment an hour; a step of 32
/// micro-steps is long, so a few of them suffice.
std::vector<Case> ddp_amp_cases(const Setting& setting) {
  constexpr std::int64_t kMaxAccumulatedSteps = 12;
  const std::int64_t samples = std::max<std::int64_t>(setting.batch_size / (setting.on_gpu ? 1 : 4),
                                                      compared_with_one(setting));
  const Workload run =
      with(reducing_workload(setting), fmt::format("--batch-size {} --steps {}", samples,
                                                   std::min(setting.steps, kMaxAccumulatedSteps)));
  std::vector<CaseRow> rows;
  for (const int micro_steps : {1, 4, 8, 16, 32}) {
    for (const bool fp16 : {false, true}) {
      rows.push_back(
          {accumulated_key(fp16, micro_steps), "",
           fmt::format("--accumulate {}{}", micro_steps, fp16 ? " --precision fp16" : "")});
    }
  }
  return cases_of(setting, run, rows);
}

/// To the losses of the same steps in fp32.
double furthest_loss(const Results& results, const Measurement& fp16) {
  const auto micro_steps = static_cast<int>(fp16.workload().config.training.accumulate);
  return loss_difference(fp16, results.at(accumulated_key(false, micro_steps)));
}

/// Whether gradients overflowed, and how far losses are from fp32's.
std::string steadiness_text(const Results& results) {
  std::int64_t skipped = 0, steps = 0;
  double furthest = 0;
  for (const Measurement& measured : results.cases) {
    if (!is_fp16(measured)) continue;
    skipped += measured.starts().front().ranks.front().skipped;
    steps += measured.workload().steps();
    furthest = std::max(furthest, furthest_loss(results, measured));
  }
  return fmt::format(
      "{} of {} steps in fp16 overflowed and were skipped; losses differ from fp32's by a share of "
      "{} at most.",
      skipped, steps, share_text(furthest));
}

Findings ddp_amp_findings(const Results& results) {
  const auto bytes = [&](const char* key) { return human_bytes(memory_of(results.at(key)).bytes); };
  return FindingsOf(results)
      .compare(
          {{"ddp", "accumulate-4", "with 4 micro-steps", "with an update after each batch",
            "accumulation", "sample"},
           {"ddp", "amp", "in fp16", "in fp32", "precision", "sample"},
           {"accumulate-4", "both-4", "with 4 micro-steps in fp16", "in fp32", "both", "sample"},
           {"accumulate-4", "accumulate-32", "with 32 micro-steps in fp32", "with 4",
            "more-in-fp32", "sample"},
           {"both-4", "both-32", "with 32 micro-steps in fp16", "with 4", "more-in-fp16",
            "sample"}},
          {.as_family = false, .by_sample = true})
      .untimed("memory",
               fmt::format("A rank needs {} with 4 micro-steps in fp32, {} in fp16, {} with both, "
                           "and {} with neither (from the plan).",
                           bytes("accumulate-4"), bytes("amp"), bytes("both-4"), bytes("ddp")))
      .untimed("stability", steadiness_text(results))
      .table(several_ranks(results, true) + " that accumulate, in fp32 and fp16",
             {"case",
              "micro-steps",
              "time",
              "sample-time",
              "deviation",
              "communication",
              "sends",
              {"memory", "memory of a rank (plan)"},
              {"skipped", "skipped steps"},
              {"difference from fp32's losses",
               [&](const Measurement& measured) {
                 return share_text(furthest_loss(results, measured));
               }}})
      .phases();
}

}  // namespace

Experiment ddp_ladder_experiment() {
  return {"ddp-ladder",
          "From messages to buckets",
          "What do larger messages, overlap with backward, and both together gain, and which size "
          "of buckets is best?",
          [](const Setting& setting) {
            return cases_of(setting, reducing_workload(setting), kReductionRungs);
          },
          ladder_findings,
          "fastest reason table"};
}

Experiment no_sync_experiment() {
  return {"no-sync",
          "Accumulating without no_sync()",
          "What does it cost to reduce gradients in each micro-step?",
          no_sync_cases,
          no_sync_findings,
          "exposed bytes losses table phases-plot"};
}

Experiment ddp_amp_experiment() {
  return {
      "ddp-amp",
      "DDP with accumulation, with mixed precision, and with both",
      "What do accumulation, fp16 and both save, and does training stay steady?",
      ddp_amp_cases,
      ddp_amp_findings,
      "accumulation precision both more-in-fp32 more-in-fp16 memory stability table phases-plot",
      false};
}

}  // namespace barestep
