// What 16-bit numbers save in a training step, time and memory, and what int8 gains in an
// evaluation, and how many answers it changes.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

/// A batch at which products take most of a step; used in addition to the setting's own.
constexpr std::int64_t kLargeBatch = 512;

/// The lowest claimed speed-up of mixed precision.
constexpr double kClaimedSpeed = 2;

std::string precision_key(Precision precision, std::int64_t batch) {
  return fmt::format("{}-{}", name_of(precision), batch);
}

/// At a batch, in this precision.
Case precision_case(const Setting& setting, const Workload& run, Precision precision,
                    std::int64_t batch) {
  return new_case(
      setting, precision_key(precision, batch),
      with(run, fmt::format("--precision {} --batch-size {}", name_of(precision), batch)));
}

std::vector<std::int64_t> precision_batches(const Setting& setting) {
  if (setting.batch_size >= kLargeBatch) return {setting.batch_size};
  return {setting.batch_size, kLargeBatch};
}

/// Precisions to compare with fp32.
std::vector<Precision> reduced_precisions(const Setting& setting) {
  if (setting.on_gpu) return {Precision::kTf32, Precision::kBf16, Precision::kFp16};
  return {Precision::kBf16, Precision::kFp16};
}

std::vector<Case> precision_cases(const Setting& setting) {
  std::vector<Precision> precisions = reduced_precisions(setting);
  precisions.insert(precisions.begin(), Precision::kFp32);
  const Workload run = with(base_workload(setting), "--update separate");
  std::vector<Case> cases;
  for (const std::int64_t batch : precision_batches(setting)) {
    for (const Precision precision : precisions) {
      cases.push_back(precision_case(setting, run, precision, batch));
    }
  }
  return cases;
}

/// The fastest case, and whether the claimed speed-up of 2 to 3 holds in it or in any other.
std::string fastest_precision(const Results& results, const Comparison& fastest) {
  const Workload& workload = results.at(fastest.b).workload();
  return fmt::format("{} at a batch of {}, {} as fast as fp32",
                     name_of(workload.config.device.precision), workload.batch_size(),
                     factor_text(fastest.speed()));
}

/// The planned memory, compared with the claim that mixed precision halves it. `where` begins the
/// sentence; `workload` is the one with bf16.
std::string saved_memory_text(const std::string& where, Workload workload) {
  const DeviceMemory bf16 = planned_memory(workload).front();
  workload.config.device.precision = Precision::kFp32;
  const DeviceMemory fp32 = planned_memory(workload).front();
  const auto activations = [](const DeviceMemory& memory) {
    return human_bytes(memory.by_category[Category::kActivations]);
  };
  return fmt::format(
      "{} mixed precision {} memory: {} instead of {}, {} (from the plan). Activations are {} "
      "instead of {}; a rounded copy of the weights is added.",
      where, bf16.bytes < fp32.bytes ? "saves" : "costs", human_bytes(bf16.bytes),
      human_bytes(fp32.bytes), factor_text(times_the_bytes(bf16.bytes, fp32.bytes)),
      activations(bf16), activations(fp32));
}

/// A plot of how many times as fast a case is, by batch, one line for each of these precisions.
Plot speeds_plot(std::string title, const Results& results,
                 const std::vector<Precision>& precisions,
                 const std::vector<std::int64_t>& batches) {
  Plot plot{.title = std::move(title),
            .x_label = "samples in a batch",
            .y_label = "times as fast as in fp32",
            .log_x = true};
  for (const Precision precision : precisions) {
    std::vector<std::string> keys;
    for (const std::int64_t batch : batches) keys.push_back(precision_key(precision, batch));
    plot.series.push_back(points_of(
        std::string(name_of(precision)), results, keys, batch_of, [&](const Measurement& measured) {
          return results
              .compare(precision_key(Precision::kFp32, measured.workload().batch_size()),
                       measured.what().key)
              .speed();
        }));
  }
  return plot;
}

/// Against the same batch in fp32, of which there is no factor.
Column speed_against_fp32(const Results& results) {
  return {"speed against fp32", [&](const Measurement& measured) -> std::string {
            if (measured.workload().config.device.precision == Precision::kFp32) return "";
            return factor_text(
                results
                    .compare(precision_key(Precision::kFp32, measured.workload().batch_size()),
                             measured.what().key)
                    .speed());
          }};
}

Findings precision_findings(const Results& results) {
  const std::vector<Precision> reduced = reduced_precisions(results.setting);
  const std::vector<std::int64_t> batches = precision_batches(results.setting);
  std::vector<Compared> pairs;
  for (const std::int64_t batch : batches) {
    for (const Precision precision : reduced) {
      pairs.push_back({precision_key(Precision::kFp32, batch), precision_key(precision, batch),
                       fmt::format("in {}", name_of(precision)), "in fp32", "",
                       fmt::format("step of {} samples", batch)});
    }
  }
  FindingsOf all(results);
  const Comparison fastest = fastest_gain(all.compare(pairs).comparisons());
  all.timed("claim", claim_text(all.comparisons(), kClaimedSpeed, "The claimed factor of 2 to 3",
                                fastest_precision(results, fastest)));
  for (const std::int64_t batch : batches) {
    constexpr int kRanks = 2;
    Workload workload = results.at(precision_key(Precision::kBf16, batch)).workload();
    all.untimed(fmt::format("memory-{}", batch),
                saved_memory_text(fmt::format("At a batch of {}", batch), workload));
    workload.config.parallel.scheme = SchemeKind::kDdp;  // which reduces fp32 gradients
    workload.ranks = kRanks;
    workload.config.data.batch_size = kRanks * batch;
    all.untimed(
        fmt::format("memory-of-ranks-{}", batch),
        saved_memory_text(fmt::format("On each of two ranks with {} samples", batch), workload));
  }
  return all
      .table("A step by precision", {"batch",
                                     "precision",
                                     "time",
                                     speed_against_fp32(results),
                                     "optimizer",
                                     {"memory", "memory (plan)"},
                                     "activations"})
      .untimed("published",
               "Cited: 2x to 3x for AMP (pytorch.org/tutorials/recipes/recipes/amp_recipe.html); "
               "its recipe, 4096 x 3 at batch 512 on a T4, needs 1.35 GB, with AMP 1.58 GB "
               "(github.com/pytorch/tutorials/issues/1267); at batch 4096 7.738 s, with AMP 3.325 "
               "s; on an RTX 3080 1.803 s, with AMP 2.268 s (discuss.pytorch.org/t/134442).")
      .plot(speeds_plot("How many times as fast as in fp32 a step is", results, reduced, batches));
}

// Evaluation in int8.

const std::vector<std::int64_t> kEvaluatedBatches = {1, 8, 64, 512};

/// A classifier of the data set, trained once beforehand on all of its samples.
std::vector<Case> int8_cases(const Setting& setting) {
  std::vector<Case> cases;
  Workload run = with(base_workload(setting), "--loss cross-entropy --no-last-relu");
  read_classes(run.config.data, setting.data);
  run.config.training.steps.reset();
  run.config.training.evaluate_only = true;
  run.config.output.load =
      setting.data / fmt::format("classifier-{}x{}.safetensors", setting.dim, setting.depth);
  for (const std::int64_t batch : kEvaluatedBatches) {
    for (const Precision precision : {Precision::kFp32, Precision::kInt8}) {
      cases.push_back(precision_case(setting, run, precision, batch));
    }
  }
  return cases;
}

/// Nothing if no start reported it.
std::optional<Evaluated> evaluated_in(const Results& results, std::int64_t batch,
                                      Precision precision) {
  for (const Evaluated& evaluated :
       results.at(precision_key(Precision::kInt8, batch)).starts().front().evaluated) {
    if (evaluated.precision == name_of(precision)) return evaluated;
  }
  return std::nullopt;
}

std::string agreement_text(const std::optional<Evaluated>& fp32,
                           const std::optional<Evaluated>& int8) {
  if (!fp32 || !int8) return "The effect of int8 on the answers was not reported.";
  return fmt::format(
      "In int8 {} of {} {} {}; the accuracy is {:.2f} % instead of {:.2f} %, on samples that it "
      "was trained with. A batch reads {} of weights instead of {}.",
      grouped(int8->changed), grouped(int8->samples), noun_for(int8->samples, "answer"),
      int8->changed == 1 ? "changes" : "change", 100 * int8->accuracy, 100 * fp32->accuracy,
      human_bytes(int8->weight_bytes), human_bytes(fp32->weight_bytes));
}

Findings int8_findings(const Results& results) {
  std::vector<Compared> pairs;
  for (const std::int64_t batch : kEvaluatedBatches) {
    pairs.push_back({precision_key(Precision::kFp32, batch), precision_key(Precision::kInt8, batch),
                     "in int8", "in fp32", "", fmt::format("batch of {}", batch)});
  }
  const auto evaluated = [&](std::string title, const auto& text, const char* none) -> Column {
    return {std::move(title), [&results, text, none](const Measurement& measured) -> std::string {
              const Workload& workload = measured.workload();
              const Precision precision = workload.config.device.precision;
              const auto found = evaluated_in(results, workload.batch_size(), precision);
              return found ? text(*found) : none;
            }};
  };
  const std::int64_t largest = kEvaluatedBatches.back();
  return FindingsOf(results)
      .compare(pairs)
      .untimed("answers", agreement_text(evaluated_in(results, largest, Precision::kFp32),
                                         evaluated_in(results, largest, Precision::kInt8)))
      .untimed("published",
               "Cited for dynamic int8: 4x smaller and 2x to 3x as fast "
               "(pytorch.org/blog/introduction-to-quantization-on-pytorch/, 2020-03-26); "
               "BERT-base, batch 1, one thread of an i5-10210U: 1066 ms, in int8 686 ms "
               "(github.com/percent4/dynamic_quantization_on_bert).")
      .table("Batches in fp32 and in int8",
             {"batch",
              "precision",
              {"time", "mean latency"},
              "p95",
              "samples-per-s",
              speed_against_fp32(results),
              evaluated(
                  "accuracy",
                  [](const Evaluated& of) { return fmt::format("{:.2f} %", 100 * of.accuracy); },
                  "not reported"),
              evaluated(
                  "answers changed",
                  [](const Evaluated& of) -> std::string {
                    return of.precision == name_of(Precision::kInt8) ? grouped(of.changed) : "";
                  },
                  ""),
              evaluated(
                  "bytes of weights", [](const Evaluated& of) { return grouped(of.weight_bytes); },
                  "not reported")})
      .plot(speeds_plot("How many times as fast a batch is in int8", results, {Precision::kInt8},
                        kEvaluatedBatches));
}

}  // namespace

Experiment precision_experiment() {
  return {"precision",
          "Mixed precision",
          "How much time and memory do 16-bit numbers save in a training step?",
          precision_cases,
          precision_findings,
          "claim memory-* published table plot"};
}

Experiment int8_experiment() {
  return {"int8",
          "Evaluation in int8",
          "How much faster is an evaluation in int8, and how many answers does it change?",
          int8_cases,
          int8_findings,
          "answers published table plot"};
}

}  // namespace barestep
