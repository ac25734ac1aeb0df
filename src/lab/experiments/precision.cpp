// What 16-bit numbers save in a training step, time and memory.
#include <fmt/format.h>

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
      cases.push_back(new_case(
          setting, precision_key(precision, batch),
          with(run, fmt::format("--precision {} --batch-size {}", name_of(precision), batch))));
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

/// How many times as fast as the same batch in fp32.
Estimate speed_of(const Results& results, const Measurement& measured) {
  return results
      .compare(precision_key(Precision::kFp32, measured.workload().batch_size()),
               measured.what().key)
      .speed();
}

/// By batch, one line for each reduced precision.
Plot speeds_plot(const Results& results) {
  Plot plot{.title = "How many times as fast as in fp32 a step is",
            .x_label = "samples in a batch",
            .y_label = "times as fast as in fp32",
            .log_x = true};
  for (const Precision precision : reduced_precisions(results.setting)) {
    std::vector<std::string> keys;
    for (const std::int64_t batch : precision_batches(results.setting)) {
      keys.push_back(precision_key(precision, batch));
    }
    plot.series.push_back(
        points_of(std::string(name_of(precision)), results, keys, batch_of,
                  [&](const Measurement& measured) { return speed_of(results, measured); }));
  }
  return plot;
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
  const auto speed = [&](const Measurement& measured) -> std::string {
    if (measured.workload().config.device.precision == Precision::kFp32) return "";
    return factor_text(speed_of(results, measured));
  };
  return all
      .table("A step by precision", {"batch",
                                     "precision",
                                     "time",
                                     {"speed against fp32", speed},
                                     "optimizer",
                                     {"memory", "memory (plan)"},
                                     "activations"})
      .untimed("published",
               "Cited: 2x to 3x for AMP (pytorch.org/tutorials/recipes/recipes/amp_recipe.html); "
               "its recipe, 4096 x 3 at batch 512 on a T4, needs 1.35 GB, with AMP 1.58 GB "
               "(github.com/pytorch/tutorials/issues/1267); at batch 4096 7.738 s, with AMP 3.325 "
               "s; on an RTX 3080 1.803 s, with AMP 2.268 s (discuss.pytorch.org/t/134442).")
      .plot(speeds_plot(results));
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

}  // namespace barestep
