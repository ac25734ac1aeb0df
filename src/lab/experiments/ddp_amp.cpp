// Accumulation, mixed precision, and both, on ranks of DDP: what each saves in time and memory, and
// whether training stays as steady as in fp32.
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

constexpr std::array kMicroStepsOfCodes = {4, 8, 16, 32};
/// A step of 32 micro-steps is long, so a few of them suffice.
constexpr std::int64_t kMaxAccumulatedSteps = 12;

std::string accumulated_key(bool is_fp16, int micro_steps) {
  if (micro_steps == 1) return is_fp16 ? "amp" : "ddp";
  return fmt::format("{}-{}", is_fp16 ? "both" : "accumulate", micro_steps);
}

bool is_fp16(const Measurement& each) {
  return each.workload().config.device.precision == Precision::kFp16;
}

/// The same in fp32.
const Measurement& fp32_of(const Results& results, const Measurement& each) {
  const auto micro_steps = static_cast<int>(each.workload().config.training.accumulate);
  return results.at(accumulated_key(false, micro_steps));
}

Case accumulated_case(const Setting& setting, bool is_fp16, int micro_steps) {
  const int ranks = compared_with_one(setting);
  Workload workload = ddp_workload(setting, ranks);
  TrainConfig& config = workload.config;
  // On the CPU, micro-steps of the course's size would take the experiment an hour.
  config.data.batch_size =
      std::max<std::int64_t>(setting.batch_size / (setting.on_gpu ? 1 : 4), ranks);
  config.training.steps = std::min(setting.steps, kMaxAccumulatedSteps);
  config.training.accumulate = micro_steps;
  config.training.update = Update::kSeparate;
  if (is_fp16) config.device.precision = Precision::kFp16;
  return new_case(setting, accumulated_key(is_fp16, micro_steps), workload);
}

std::vector<Case> ddp_amp_cases(const Setting& setting) {
  std::vector<Case> cases = {accumulated_case(setting, false, 1),
                             accumulated_case(setting, true, 1)};
  for (const int micro_steps : kMicroStepsOfCodes) {
    for (const bool is_fp16 : {false, true}) {
      cases.push_back(accumulated_case(setting, is_fp16, micro_steps));
    }
  }
  return cases;
}

/// To the losses of the same steps in fp32.
double furthest_loss(const Results& results, const Measurement& fp16) {
  return loss_difference(fp16, fp32_of(results, fp16));
}

std::int64_t skipped_steps(const Measurement& each) {
  return each.starts().front().ranks.front().skipped;
}

FindingTable ddp_amp_table(const Results& results) {
  FindingTable table{
      .title = several_words(compared_with_one(results.setting), "rank", true) +
               " that accumulate, in fp32 and fp16",
      .columns = {"case", "micro-steps", "mean step", "time of a sample", "deviation of steps",
                  "exposed communication", "a rank sends", "memory of a rank (plan)",
                  "skipped steps", "difference from fp32's losses"}};
  for (const Measurement& each : results.cases) {
    table.rows.push_back(
        {each.what().key, std::to_string(each.workload().config.training.accumulate),
         time_text(each.mean_s()), time_text(estimate_of(each.sample_s_by_start())),
         deviation_text(each), time_text(each.phase_s("communication")),
         human_bytes(mean_sent_bytes(each.workload())), human_bytes(memory_of(each).bytes),
         is_fp16(each) ? std::to_string(skipped_steps(each)) : "",
         is_fp16(each) ? fmt::format("{:.1e}", furthest_loss(results, each)) : ""});
  }
  return table;
}

std::string memory_of_codes(const Results& results) {
  const auto bytes = [&](const char* key) { return human_bytes(memory_of(results.at(key)).bytes); };
  return fmt::format(
      "A rank needs {} with 4 micro-steps in fp32, {} in fp16, {} with both, and {} with neither "
      "(from the plan).",
      bytes("accumulate-4"), bytes("amp"), bytes("both-4"), bytes("ddp"));
}

/// Whether gradients overflowed, and how far losses are from fp32's.
std::string steadiness_fact(const Results& results) {
  std::int64_t skipped = 0, steps = 0;
  double furthest = 0;
  for (const Measurement& each : results.cases) {
    if (!is_fp16(each)) continue;
    skipped += skipped_steps(each);
    steps += each.workload().steps();
    furthest = std::max(furthest, furthest_loss(results, each));
  }
  return fmt::format(
      "{} of {} steps in fp16 overflowed and were skipped; losses differ from fp32's by a share of "
      "{:.1e} at most.",
      skipped, steps, furthest);
}

Findings conclude_ddp_amp(const Results& results) {
  const auto samples = [&](const std::string& a, const std::string& b) {
    return compare(results.samples_of(a), results.samples_of(b), results.setting.margin);
  };
  const std::array compared = {
      samples("ddp", "accumulate-4"), samples("ddp", "amp"), samples("accumulate-4", "both-4"),
      samples("accumulate-4", "accumulate-32"), samples("both-4", "both-32")};
  const auto sentence = [&](const char* name, std::size_t place, const char* b, const char* a) {
    const Comparison& each = compared.at(place);
    return Finding(name, sentence_of(each, b, a, "sample"), each.word);
  };
  Findings findings{
      .sentences = {sentence("accumulation", 0, "with 4 micro-steps",
                             "with an update after each batch"),
                    sentence("precision", 1, "in fp16", "in fp32"),
                    sentence("both", 2, "with 4 micro-steps in fp16", "in fp32"),
                    sentence("more-in-fp32", 3, "with 32 micro-steps in fp32", "with 4"),
                    sentence("more-in-fp16", 4, "with 32 micro-steps in fp16", "with 4")},
      .facts = {{"memory", memory_of_codes(results)}, {"stability", steadiness_fact(results)}},
      .tables = {ddp_amp_table(results)},
      .plots = {account_plot(results.cases, keys_of(results))}};
  keep(findings, compared);
  return findings;
}

}  // namespace

Experiment ddp_amp_experiment() {
  return {.name = "ddp-amp",
          .title = "DDP with accumulation, with mixed precision, and with both",
          .question = "What do accumulation, fp16 and both save, and does training stay steady?",
          .cases = ddp_amp_cases,
          .conclude = conclude_ddp_amp,
          .names =
              "accumulation precision both more-in-fp32 more-in-fp16 memory "
              "stability table phases-plot",
          .needs_mpi = true,
          .chooses = false};
}

}  // namespace barestep
