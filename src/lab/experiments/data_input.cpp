// How a step depends on its data: the size of the batch, a slow disk, loading threads, pinned
// memory.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>

#include "core/units.h"
#include "lab/experiments/conclusion.h"

namespace barestep {
namespace {

/// Below this share of the smallest step, the part that does not grow with the batch is negligible.
constexpr double kFixedShare = 0.1;

std::vector<Case> batch_sweep_cases(const Setting& setting) {
  std::vector<CaseRow> rows;
  for (const int batch : {16, 32, 64, 128, 256, 512}) {
    if (setting.quick && (batch < 32 || batch > 128)) continue;
    rows.push_back({fmt::format("batch-{}", batch), "", fmt::format("--batch-size {}", batch)});
  }
  return cases_of(setting, base_workload(setting), rows);
}

std::string growth_sentence(const Results& results) {
  std::vector<double> batches;
  std::vector<std::vector<double>> step_s;
  for (const Measurement& each : results.cases) {
    batches.push_back(batch_of(each));
    step_s.push_back(each.mean_s_by_start());
  }
  // The part of a step that does not depend on the batch, and its share of the smallest step.
  const auto fixed = [&](std::span<const double> steps) {
    return fit_line(batches, steps).intercept;
  };
  const Estimate fixed_s = estimate_by_round(step_s, fixed);
  const Estimate share = estimate_by_round(
      step_s, [&](std::span<const double> steps) { return fixed(steps) / steps.front(); });
  const Measurement &first = results.cases.front(), &last = results.cases.back();
  const Estimate times = results.compare(first.what().key, last.what().key).ratio;
  std::string how = fmt::format(
      "whether growth is proportional is unclear, since {} of the smallest step may not depend on "
      "the batch",
      percent_text(share));
  if (side_of(share, kFixedShare) == Side::kAbove) {
    how = fmt::format(
        "growth is not proportional; {} of each step does not depend on the batch (a line through "
        "all sizes, fitted round by round)",
        time_text(fixed_s));
  } else if (side_of(share, -kFixedShare) == Side::kBelow) {
    how = "the step time grows faster than the batch";
  } else if (side_of(share, kFixedShare) == Side::kBelow &&
             side_of(share, -kFixedShare) == Side::kAbove) {
    how = "the step time grows in proportion to the batch";
  }
  return fmt::format("From batch {} to {} ({:g}x) a step takes {} as long: {}.",
                     first.workload().batch_size(), last.workload().batch_size(),
                     batch_of(last) / batch_of(first), factor_text(times), how);
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

Findings conclude_batch_sweep(const Results& results) {
  constexpr double kNear = 0.2, kLinear = 0.9 * 4;
  const std::vector<std::string> keys = keys_of(results);
  const Comparison gain = compare(results.samples_of("batch-32"), results.samples_of("batch-128"),
                                  results.setting.margin);
  const double loss = last_loss(results.at("batch-64"));
  std::vector<double> batches, seconds;
  for (const Measurement& each : results.cases) {
    batches.push_back(batch_of(each));
    seconds.push_back(each.mean_s().median);
  }
  const Line line = fit_line(batches, seconds);
  PlotSeries fitted{.name = "fitted line", .style = SeriesStyle::kDashed};
  for (const double batch : batches) {
    fitted.points.push_back(plot_point(batch, 1e3 * (line.intercept + line.slope * batch)));
  }
  return Conclusion(results)
      .timed("growth", growth_sentence(results))
      .timed("saturation", saturation_sentence(results, keys))
      .timed("linear",
             fmt::format("{}: 4 times the batch, 128 instead of 32, trains {} as many samples/s.",
                         by_side(side_of(gain.speed(), kLinear),
                                 "Throughput grows linearly, within a tenth",
                                 "Throughput does not grow linearly",
                                 "Whether throughput grows linearly is unclear"),
                         factor_text(gain.speed())))
      .timed("efficiency", sentence_of(gain, "at batch 128", "at batch 32", "sample"), gain.word)
      .timed("efficiency-why", efficiency_reason(gain))
      .fact("loss",
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
             .series = {points_of("measured", results, keys, batch_of, mean_s_of, 1e3), fitted}});
}

// A slow disk, and loading threads.

/// A run that reads the data set.
Workload loading_workload(const Setting& setting) {
  Workload workload = base_workload(setting);
  read_data_set(workload.config.data, setting.data);
  return workload;
}

std::vector<Case> io_delay_cases(const Setting& setting) {
  std::vector<CaseRow> rows = {{"no-delay", "", "--workers 1"}};
  for (const int workers : {0, 1, 2, 4}) {
    rows.push_back({fmt::format("workers-{}", workers), "",
                    fmt::format("--workers {} --io-delay-ms 10", workers)});
  }
  return cases_of(setting, loading_workload(setting), rows);
}

/// A delay counts as hidden if the times differ by at most a tenth.
constexpr double kHidden = 1.1;

std::string hidden_sentence(const Results& results, const std::vector<Comparison>& against_fast) {
  const Estimate& fast = results.at("no-delay").mean_s();
  const auto workers_of = [&](const std::string& key) {
    return counted(results.at(key).workload().config.data.workers, "worker");
  };
  for (const Comparison& each : against_fast) {
    if (side_of(each.ratio, kHidden) != Side::kBelow) continue;
    return fmt::format(
        "{} {} the disk: a step takes {} as long as without the delay ({}, without it {}).",
        workers_of(each.b), each.b == "workers-1" ? "hides" : "hide", factor_text(each.ratio),
        time_text(results.at(each.b).mean_s()), time_text(fast));
  }
  const Comparison& best = *std::ranges::min_element(
      against_fast, {}, [](const Comparison& each) { return each.ratio.median; });
  const bool none = std::ranges::all_of(against_fast, [](const Comparison& each) {
    return side_of(each.ratio, kHidden) == Side::kAbove;
  });
  return fmt::format("{}: at best, with {}, a step takes {} as long as without the delay, and {}.",
                     none ? "No number of workers here hides the disk"
                          : "Whether workers hide the disk is unclear",
                     workers_of(best.b), factor_text(best.ratio),
                     largest_text(largest_phase(results.at(best.b)), "it"));
}

Conclusion& add_loading_table(Conclusion& all) {
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

/// Amdahl's law with an infinitely fast device: the disk is the serial share. `exercise` is that of
/// a task of the course.
std::string free_computing_sentence(const Estimate& disk) {
  constexpr double kExercise = 0.3;
  if (side_of(disk, 0) != Side::kAbove) return "No wait for the disk can be seen without workers.";
  return fmt::format(
      "If computing were free, the wait for the disk would remain: {} of a step without workers, "
      "so it could be {} as fast at most, {} the 3.33x of a wait of 30 %.",
      percent_text(disk), factor_text(reciprocal(disk)),
      by_side(side_of(disk, kExercise), "less than", "more than", "which cannot be told from"));
}

Findings conclude_io_delay(const Results& results) {
  const Measurement& none = results.at("workers-0");
  const std::vector<std::string> with_workers = {"workers-1", "workers-2", "workers-4"};
  const std::vector<Comparison> against_fast = results.compare("no-delay", with_workers);
  const Estimate computing = share_of(none, computing_phases());
  const Estimate disk = share_of(none, disk_phases());
  Conclusion all(results);
  all.timed("bottleneck",
            fmt::format("With no workers {}; a step takes {}.",
                        largest_text(largest_phase(none), "a step"), time_text(none.mean_s())))
      .timed("hidden", hidden_sentence(results, against_fast))
      .timed("free-computing", free_computing_sentence(disk))
      .compare({{"no-delay", "workers-0", "with the pause", "without it", "throughput"}})
      .timed("utilization",
             fmt::format("{}: it computes during {} of a step, and waits for the disk during {}.",
                         by_side(side_of(computing, 0.9), "The device is nearly fully used",
                                 "The device is not fully used",
                                 "Whether the device is fully used is unclear"),
                         percent_text(computing), percent_text(disk)))
      .keep(against_fast);
  return add_loading_table(all);
}

std::string pinned_key(int workers, bool pinned) {
  return fmt::format("workers-{}{}", workers, pinned ? "" : "-pageable");
}

std::vector<Case> data_loading_cases(const Setting& setting) {
  std::vector<CaseRow> rows;
  for (const int workers : {0, 1, 2, 4}) {
    for (const bool pinned : {true, false}) {
      // On the CPU, no data are copied to a device, so both would be the same program.
      if (!pinned && !setting.on_gpu) continue;
      rows.push_back({pinned_key(workers, pinned), "",
                      fmt::format("--workers {}{}", workers, pinned ? "" : " --no-pin")});
    }
  }
  return cases_of(setting, loading_workload(setting), rows);
}

/// The fastest number of workers compared with none; `gains` compare each number with none.
std::string workers_sentence(const Measurement& none, const std::vector<Comparison>& gains) {
  std::vector<std::string> faster;
  for (const Comparison& each : gains) {
    if (!each.is_faster()) continue;
    faster.push_back(fmt::format("{} is {} as fast", each.b, factor_text(each.speed())));
  }
  const std::string inside = fmt::format("loading inside the step takes {} of {}",
                                         time_text(none.phase_s("data")), time_text(none.mean_s()));
  if (const std::string too_few = too_few_of(gains); faster.empty() && !too_few.empty()) {
    return fmt::format("Whether workers make a step faster: {}; {}.", too_few, inside);
  }
  if (faster.empty()) {
    return fmt::format("No number of workers is measurably faster than none: {}.", inside);
  }
  return fmt::format("Workers make a step faster: {}; without them, {}.", list_text(faster),
                     inside);
}

std::string pinned_sentence(const std::vector<Comparison>& pinned) {
  std::vector<std::string> faster, slower;
  for (const Comparison& each : pinned) {
    if (each.is_faster()) faster.push_back(fmt::format("{} {}", each.b, factor_text(each.speed())));
    if (each.is_slower()) slower.push_back(fmt::format("{} {}", each.b, factor_text(each.ratio)));
  }
  std::string text;
  if (!faster.empty()) {
    text = fmt::format("Pinned memory makes a step faster: {} as fast.", list_text(faster));
  }
  if (!slower.empty()) {
    text += fmt::format("{}Pinned memory makes a step slower: {} as long.", text.empty() ? "" : " ",
                        list_text(slower));
  }
  if (!text.empty()) return text;
  if (const std::string too_few = too_few_of(pinned); !too_few.empty()) {
    return fmt::format("Whether pinned memory makes a step faster or slower: {}.", too_few);
  }
  const bool same = std::ranges::all_of(
      pinned, [](const Comparison& each) { return each.word == Word::kNoDifference; });
  return same ? fmt::format(
                    "Pinned memory makes no difference beyond {}, with any number of "
                    "workers.",
                    chosen_percent(pinned.front().margin - 1))
              : "Whether pinned memory makes a step faster or slower is unclear, with any "
                "number of workers.";
}

Findings conclude_data_loading(const Results& results) {
  const std::vector<std::string> workers = {"workers-1", "workers-2", "workers-4"};
  const std::vector<Comparison> gains = results.compare("workers-0", workers);
  Conclusion all(results);
  all.timed("workers", workers_sentence(results.at("workers-0"), gains)).keep(gains);
  if (results.setting.on_gpu) {
    std::vector<Comparison> pinned;
    for (const int count : {0, 1, 2, 4}) {
      pinned.push_back(results.compare(pinned_key(count, false), pinned_key(count, true)));
    }
    adjust_together(pinned);
    all.timed("pinned", pinned_sentence(pinned)).keep(pinned);
  } else {
    all.fact("pinned",
             "Pinned memory speeds up copies to a GPU; on the CPU there are none, so --no-pin "
             "changes nothing and is not measured.");
  }
  return add_loading_table(all);
}

}  // namespace

Experiment batch_sweep_experiment() {
  return {.name = "batch-sweep",
          .title = "Batch size",
          .question =
              "How do step time and throughput grow with the batch, and where does "
              "throughput saturate?",
          .cases = batch_sweep_cases,
          .conclude = conclude_batch_sweep,
          .names = "growth saturation linear efficiency efficiency-why loss table plot times-plot"};
}

Experiment io_delay_experiment() {
  return {.name = "io-delay",
          .title = "A slow disk",
          .question =
              "A disk that takes 10 ms for each batch: which part of the step is the "
              "bottleneck, and do workers hide it?",
          .cases = io_delay_cases,
          .conclude = conclude_io_delay,
          .names = "bottleneck hidden free-computing throughput utilization table phases-plot",
          .reads_data = true};
}

Experiment data_loading_experiment() {
  return {.name = "data-loading",
          .title = "Workers and pinned memory",
          .question = "How many loading threads does a step need, and does pinned memory matter?",
          .cases = data_loading_cases,
          .conclude = conclude_data_loading,
          .names = "workers pinned table phases-plot",
          .reads_data = true};
}

}  // namespace barestep
