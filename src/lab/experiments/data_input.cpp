// How a step depends on its data: the size of the batch, a slow disk, loading threads, pinned
// memory.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

std::vector<Case> batch_sweep_cases(const Setting& setting) {
  std::vector<CaseRow> rows;
  for (const int batch : {16, 32, 64, 128, 256, 512}) {
    if (setting.quick && (batch < 32 || batch > 128)) continue;
    rows.push_back({fmt::format("batch-{}", batch), "", fmt::format("--batch-size {}", batch)});
  }
  return cases_of(setting, base_workload(setting), rows);
}

/// How much of a step does not grow with the batch.
void add_growth(FindingsOf& all, const Results& results) {
  constexpr double kNegligible = 0.1;  // of the smallest step
  std::vector<double> batches;
  std::vector<std::vector<double>> step_s;
  for (const Measurement& measured : results.cases) {
    batches.push_back(batch_of(measured));
    step_s.push_back(measured.mean_s_by_start());
  }
  const Estimate share = estimate_by_round(step_s, [&](std::span<const double> steps) {
    return fit_line(batches, steps).intercept / steps.front();
  });
  const Measurement &first = results.cases.front(), &last = results.cases.back();
  const bool is_proportional =
      side_of(share, kNegligible) == Word::kBelow && side_of(share, -kNegligible) == Word::kAbove;
  const std::string open =
      is_proportional ? "The step time grows in proportion to the batch"
      : side_of(share, -kNegligible) == Word::kBelow
          ? "The step time grows faster than the batch"
          : "Whether the step time grows in proportion to the batch is unclear";
  all.judge("growth", share, kNegligible,
            {"The step time grows less than in proportion to the batch", open, open},
            fmt::format("from batch {} to {} ({:g}x) a step takes {} as long; {} of the smallest "
                        "step do not depend on the batch (a line through all sizes, fitted round "
                        "by round)",
                        first.workload().batch_size(), last.workload().batch_size(),
                        batch_of(last) / batch_of(first),
                        factor_text(results.compare(first.what().key, last.what().key).ratio),
                        percent_text(share)));
}

std::string efficiency_reason(const Comparison& gain) {
  if (gain.is_faster()) {
    return "What a step does once, such as the update, is shared by more samples, and wider "
           "products reuse each weight that they read more often.";
  }
  if (gain.is_slower() || gain.word == Word::kNoDifference) {
    return "The step grows with the batch, or nearly so, so a larger one gains nothing that "
           "counts.";
  }
  return "Whether a larger batch gains anything is unclear here.";
}

Findings batch_sweep_findings(const Results& results) {
  constexpr double kNear = 0.2, kLinear = 0.9 * 4;
  const std::vector<std::string> keys = keys_of(results);
  const Comparison gain = compare(results.samples_of("batch-32"), results.samples_of("batch-128"),
                                  results.setting.margin);
  const double loss = last_loss(results.at("batch-64"));
  FindingsOf all(results);
  add_growth(all, results);
  return all.timed("saturation", saturation_text(results, keys))
      .judge("linear", gain.speed(), kLinear,
             {"Throughput grows linearly, within a tenth", "Throughput does not grow linearly",
              "Whether throughput grows linearly is unclear"},
             fmt::format("4 times the batch, 128 instead of 32, trains {} as many samples/s",
                         factor_text(gain.speed())))
      .timed("efficiency", text_of(gain, "at batch 128", "at batch 32", "sample"), gain.word)
      .timed("efficiency-why", efficiency_reason(gain))
      .untimed("loss",
               fmt::format(
                   "{}: the last loss is {:.3f}, and that of the best output, 0, is 1.",
                   std::abs(loss - 1) < kNear ? "A loss near 1 is right" : "The loss is not near 1",
                   loss))
      .keep(results.compare(keys.front(), std::span(keys).subspan(1)))
      .table("Batch size, step time and throughput",
             {{"batch", "batch size"}, "time", "samples-per-s", {"sample-time", "time per sample"}})
      .plot({.title = "Throughput against batch size",
             .x_label = "batch size",
             .y_label = "samples/s",
             .log_x = true,
             .series = {points_of("measured", results, keys, batch_of, samples_per_s_of)}})
      .plot({.title = "Step time against batch size",
             .name = "times-plot",
             .x_label = "batch size",
             .y_label = "ms a step",
             .series = {points_of("measured", results, keys, batch_of, mean_s_of, 1e3)}});
}

// A slow disk, and loading threads.

constexpr const char *kFast = "no-delay", *kLoaded = "no-delay-loaded",
                     *kPageable = "no-delay-pageable", *kSlow = "workers-0";

/// On the CPU no data are copied to a device, so pinned memory is the same program.
std::vector<Case> io_delay_cases(const Setting& setting) {
  std::vector<CaseRow> rows = {{kFast, "", "--workers 0"}, {kLoaded, "", "--workers 1"}};
  if (setting.on_gpu) rows.push_back({kPageable, "", "--workers 1 --no-pin"});
  for (const int workers : {0, 1, 2, 4}) {
    rows.push_back({fmt::format("workers-{}", workers), "",
                    fmt::format("--workers {} --io-delay-ms {}", workers, setting.pause_ms)});
  }
  Workload run = base_workload(setting);
  read_data_set(run.config.data, setting.data);
  return cases_of(setting, run, rows);
}

/// A delay counts as hidden if the times differ by at most a tenth.
void add_hidden(FindingsOf& all, const Results& results) {
  constexpr double kHidden = 1.1;
  const std::vector<std::string> workers = {"workers-1", "workers-2", "workers-4"};
  const std::vector<Comparison> against_fast = results.compare(kLoaded, workers);
  const auto hides = [](const Comparison& comparison) {
    return side_of(comparison.ratio, kHidden) == Word::kBelow;
  };
  const auto first = std::ranges::find_if(against_fast, hides);
  const Comparison& shown =
      first != against_fast.end()
          ? *first
          : *std::ranges::min_element(against_fast, {}, [](const Comparison& comparison) {
              return comparison.ratio.median;
            });
  const std::string count = counted(results.at(shown.b).workload().config.data.workers, "worker");
  all.judge("hidden", shown.ratio, kHidden,
            {"No number of workers here hides the disk",
             fmt::format("{} {} the disk", count, shown.b == "workers-1" ? "hides" : "hide"),
             "Whether workers hide the disk is unclear"},
            fmt::format("with {} a step takes {} as long as without the delay, and {}", count,
                        factor_text(shown.ratio),
                        largest_text(largest_phase(results.at(shown.b)), "it")))
      .keep(against_fast);
}

/// Amdahl's law with an infinitely fast device: the disk is the serial share, beside that of a task
/// of the course.
void add_free_computing(FindingsOf& all, const Estimate& disk) {
  constexpr double kExercise = 0.3;
  if (side_of(disk, 0) != Word::kAbove) {
    all.timed("free-computing", "No wait for the disk can be seen without workers.");
    return;
  }
  all.judge("free-computing", disk, kExercise,
            {"Less than the 3.33x of a wait of 30 %", "More than the 3.33x of a wait of 30 %",
             "Whether more or less than the 3.33x of a wait of 30 % is unclear"},
            fmt::format("if computing were free, the wait for the disk would remain, {} of a step "
                        "without workers, so it could be {} as fast at most",
                        percent_text(disk), factor_text(reciprocal(disk))));
}

Findings io_delay_findings(const Results& results) {
  const Measurement& none = results.at(kSlow);
  const Estimate computing = share_of(none, computing_phases());
  const Estimate disk = share_of(none, std::array<std::string_view, 2>{"data", "injected"});
  FindingsOf all(results);
  all.timed("bottleneck",
            fmt::format("With no workers {}; a step takes {}.",
                        largest_text(largest_phase(none), "a step"), time_text(none.mean_s())));
  add_hidden(all, results);
  add_free_computing(all, disk);
  all.compare({{kFast, kSlow, "with the pause", "without it", "throughput"},
               {kFast, kLoaded, "with a worker", "with none", "workers"}},
              {.as_family = false})
      .judge("utilization", computing, 0.9,
             {"The device is nearly fully used", "The device is not fully used",
              "Whether the device is fully used is unclear"},
             fmt::format("it computes during {} of a step, and waits for the disk during {}",
                         percent_text(computing), percent_text(disk)));
  if (results.setting.on_gpu) {
    all.compare({{kPageable, kLoaded, "with pinned memory", "without", "pinned"}});
  } else {
    all.untimed("pinned",
                "Pinned memory speeds up copies to a GPU; on the CPU there are none, so --no-pin "
                "changes nothing and is not measured.");
  }
  return all
      .table("Step time and the wait for data", {"case",
                                                 "time",
                                                 "samples-per-s",
                                                 {"data", "waiting for data"},
                                                 "data-share",
                                                 {"injected", "injected delay"},
                                                 "injected-share"})
      .phases();
}

}  // namespace

Experiment batch_sweep_experiment() {
  return {
      "batch-sweep",
      "Batch size",
      "How do step time and throughput grow with the batch, and where does throughput saturate?",
      batch_sweep_cases,
      batch_sweep_findings,
      "growth saturation linear efficiency efficiency-why loss table plot times-plot"};
}

Experiment io_delay_experiment() {
  return {"io-delay",
          "A slow disk, and workers",
          "A disk that takes 10 ms for each batch: which part of the step is the bottleneck, do "
          "workers hide it, and does pinned memory matter?",
          io_delay_cases,
          io_delay_findings,
          "bottleneck hidden free-computing throughput workers pinned utilization table "
          "phases-plot"};
}

}  // namespace barestep
