// The sentences of sheets that have a function of their own. Each draws on its figures and says
// something else if they say something else.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>

#include "core/statistics.h"
#include "core/units.h"
#include "lab/experiments/figures.h"
#include "lab/predict/asked_run.h"
#include "lab/predict/schedule_check.h"
#include "lab/predict/workload.h"
#include "lab/sheets/sheet_names.h"
#include "parallel/schemes/data_parallel.h"
#include "profiler/data_parallel_account.h"

namespace barestep {
namespace {

// The measurement.

std::string machine_note(const SheetRuns& runs) {
  std::string text;
  for (const auto& [name, value] : runs.report().environment) {
    text += fmt::format("- {}: {}\n", name, value);
  }
  for (const ReportSection& section : runs.report().sections) {
    if (section.verdict.empty()) continue;
    text += fmt::format("- {}: {}\n", section.experiment->name, invalid_line(section));
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

/// Empty if nothing was measured.
std::string checklist_note(const SheetRuns& runs) {
  std::vector<const Results*> all;
  for (const ReportSection& section : runs.report().sections) all.push_back(&section.results);
  return checklist_line(checklist_of(all));
}

std::string size_note(const SheetRuns& runs) {
  const Setting setting = runs.setting(), course = new_setting(false, true, 1);
  const bool is_course = setting.dim == course.dim && setting.depth == course.depth;
  std::string text =
      fmt::format("Where a task names no other model, it is {} (width x layers){}; measured on {}.",
                  model_text(setting.dim, setting.depth),
                  is_course ? ", the course's"
                            : " in place of the course's " + model_text(course.dim, course.depth),
                  setting.on_gpu ? "GPUs" : "the CPU: its ranks and devices are cores, not GPUs");
  if (setting.batch_size != course.batch_size) {
    text += fmt::format(" Tasks that do not vary the batch take {} in place of {}.",
                        setting.batch_size, course.batch_size);
  }
  text += fmt::format(
      " Columns headed \"Simulated\" are the course's size on {}: calculated by mlp_lab's "
      "simulator, "
      "not measured. {}",
      runs.gpus().name, kSimulationError);
  std::vector<std::string> unknown;
  for (const Precision each : {Precision::kTf32, Precision::kBf16, Precision::kFp16}) {
    if (!has_rate(runs.gpus(), each)) unknown.emplace_back(name_of(each));
  }
  if (unknown.empty()) return text;
  return text + fmt::format(" Its card has no rate of products in {}, so such figures are \"-\".",
                            list_text(unknown));
}

// Practical 2.

std::string rows_answer(const Results& results) {
  const std::int64_t rows = results.setting.batch_size;
  const Estimate ratio = compare(forward_products(results, "fp32-1"),
                                 forward_products(results, fmt::format("fp32-{}", rows)))
                             .ratio;
  return fmt::format(
      "{}: {} rows take {} as long as one.",
      by_side(side_of(ratio, 0.9 * static_cast<double>(rows)), "In proportion, within a tenth",
              "By less than in proportion", "Whether in proportion is unclear"),
      rows, factor_text(ratio));
}

std::string bits_answer(const Results& results) {
  const std::int64_t rows = results.setting.batch_size;
  const auto products = [&](const char* precision) {
    return forward_products(results, fmt::format("{}-{}", precision, rows));
  };
  return sentence_of(compare(products("fp32"), products("bf16"), results.setting.margin), "in bf16",
                     "in fp32", fmt::format("forward product of {} rows", rows));
}

// Practical 3.

std::string loss_answer(const SheetRuns& runs) {
  constexpr double kNear = 0.2;
  const Measurement& each = runs.of("batch-sweep").at("batch-64");
  const double loss = last_loss(each);
  return fmt::format("{}: the last loss is {:.3f}, and that of the best answer, 0, is 1.",
                     std::abs(loss - 1) < kNear ? "Yes" : "No", loss);
}

/// Throughput at batch 128 as a multiple of that at batch 32.
Estimate throughput_gain(const Results& sweep) {
  return compare(sweep.samples_of("batch-32"), sweep.samples_of("batch-128"), sweep.setting.margin)
      .speed();
}

std::string linear_answer(const Results& sweep) {
  constexpr double kLinear = 0.9 * 4;
  const Estimate gain = throughput_gain(sweep);
  const Side side = side_of(gain, kLinear);
  return fmt::format("{}: 4 times the batch, 128 instead of 32, trains {} as many samples/s.",
                     side == Side::kAbove   ? "Yes, within a tenth"
                     : side == Side::kBelow ? "No"
                                            : "Whether it does is unclear",
                     factor_text(gain));
}

std::string efficiency_answer(const Results& sweep) {
  return sentence_of(
      compare(sweep.samples_of("batch-32"), sweep.samples_of("batch-128"), sweep.setting.margin),
      "at batch 128", "at batch 32", "sample");
}

std::string efficiency_reason(const Results& sweep) {
  const Comparison gain =
      compare(sweep.samples_of("batch-32"), sweep.samples_of("batch-128"), sweep.setting.margin);
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

std::string disk_answer(const Results& results) {
  return sentence_of(results.compare("no-delay", "workers-0"), "with the pause", "without it");
}

std::string utilization_answer(const Results& results) {
  const Measurement& waits = results.at("workers-0");
  const Estimate computing = share_of(waits, computing_phases());
  return fmt::format("{}: it computes during {} of a step, and waits for the disk during {}.",
                     by_side(side_of(computing, 0.9), "Nearly", "No", "That is unclear"),
                     percent_text(computing), percent_text(share_of(waits, disk_phases())));
}

std::string amdahl_answer(const Results& results) {
  constexpr double kExercise = 0.3;
  const Estimate disk = share_of(results.at("workers-0"), disk_phases());
  const Side side = side_of(disk, kExercise);
  const std::string here = fmt::format(
      "in task 3 the wait is {} of a step, so with free computing a step would be {} as fast",
      percent_text(disk), factor_text(reciprocal(disk)));
  if (side == Side::kOpen) return fmt::format("Yes, as far as can be told: {}.", here);
  return fmt::format("The law does, the number does not: {}, {} 3.33x.", here,
                     side == Side::kAbove ? "less than" : "more than");
}

/// Whether an op is in the part of a step that the sheet profiles.
bool is_in_region(const OpTime& op) {
  return op.phase == "forward" || op.phase == "loss" || op.phase == "backward";
}

std::vector<double> region_seconds(const Measurement& step) {
  return op_seconds(step, is_in_region);
}

/// The operations of the region by PyTorch's names, each the sum of its calls as key_averages()
/// shows it, in seconds by start; the longest first.
std::vector<PartSeries> region_parts(const Measurement& step) {
  std::vector<PartSeries> parts;
  for (const OpTime& op : step.ops()) {
    const std::string_view name = pytorch_name(op);
    if (!is_in_region(op) || std::ranges::find(parts, name, &PartSeries::name) != parts.end()) {
      continue;
    }
    parts.push_back({std::string(name), op_seconds(step, [&](const OpTime& other) {
                       return is_in_region(other) && pytorch_name(other) == name;
                     })});
  }
  std::ranges::sort(parts, std::ranges::greater{},
                    [](const PartSeries& each) { return median(each.values); });
  return parts;
}

std::string region_table(const SheetRuns& runs) {
  const Measurement& step = runs.of("profile").at("profiled");
  const std::vector<double> all = region_seconds(step);
  FindingTable table{.title = "Forward, loss and backward by operation, calls added up",
                     .columns = {"Operation, in PyTorch's name", "Time in a step", "Share"}};
  for (const PartSeries& each : region_parts(step)) {
    table.rows.push_back(
        {each.name, time_text(estimate_of(each.values)),
         percent_text(estimate_by_round(each.values, all, std::divides<double>()))});
  }
  return markdown_table(table);
}

std::string most_time_answer(const Results& results) {
  const Measurement& step = results.at("profiled");
  const std::vector<PartSeries> parts = region_parts(step);
  if (parts.empty()) return "No operation was recorded.";
  const std::vector<double> all_s = region_seconds(step);
  const LargestPart longest = largest_of(parts, all_s);
  const std::string all = time_text(estimate_of(all_s));
  if (longest.is_alone()) {
    return fmt::format("{}: {} of the {} that forward, loss and backward take.",
                       longest.names.front(), percent_text(longest.share), all);
  }
  return fmt::format(
      "{}, which are indistinguishable: the first takes {} of the {} that forward, "
      "loss and backward take.",
      list_text(longest.names), percent_text(longest.share), all);
}

std::string most_time_reason(const Results& results) {
  const Measurement& step = results.at("profiled");
  const std::int64_t layers = step.workload().depth();
  const std::vector<PartSeries> parts = region_parts(step);
  if (parts.empty()) return "";
  const std::string counts = fmt::format(
      "aten::mm is {} products of backward, for the gradients of weights and inputs (the first "
      "layer needs none of its input); aten::addmm is {} of forward",
      2 * layers - 1, layers);
  const LargestPart largest = largest_of(parts, region_seconds(step));
  const std::string& longest = largest.names.front();
  if (!largest.is_alone() || longest == "aten::mm") return counts + ".";
  if (longest == "aten::addmm") return counts + ", and takes longer although it has fewer.";
  return counts + fmt::format(
                      "; {} computes less than either, so memory, not arithmetic, makes "
                      "it long.",
                      longest);
}

std::string backward_reason(const SheetRuns& runs) {
  const std::int64_t layers = runs.of("profile").at("profiled").workload().depth();
  return fmt::format(
      "Its products do {} the flops of forward's ({} products against {}); the times differ from "
      "that by the speed of these products and by what else the two passes read and write.",
      factor_text(static_cast<double>(2 * layers - 1) / static_cast<double>(layers)),
      2 * layers - 1, layers);
}

// Practical 5.

std::string proportion_answer(const Results& results) {
  const Measurement& several = results.cases.back();
  const Estimate gain =
      results.compare(results.cases.front().what().key, several.what().key).speed();
  const int devices = several.workload().ranks;
  return fmt::format(
      "{}: {} as fast on {}, an efficiency of {}.",
      by_side(side_of(gain, 0.9 * devices), "Yes, within a tenth", "No", "That is unclear"),
      factor_text(gain), counted(devices, "device"), percent_text(gain.median / devices));
}

bool is_computing(const OpTime& op) {
  return std::ranges::find(computing_phases(), op.phase) != computing_phases().end();
}

/// What each device computes in a step, by device and start, as mlp_dp prints it.
std::vector<std::vector<double>> busy_seconds(const Measurement& each) {
  std::vector<std::vector<double>> busy_s;
  for (int device = 0; device < each.workload().ranks; ++device) {
    busy_s.push_back(op_seconds(
        each, [&](const OpTime& op) { return op.device == device && is_computing(op); }));
  }
  return busy_s;
}

/// What a device computes, as a share of a step.
std::string busy_share_text(const Measurement& each, const std::vector<double>& busy_s) {
  return percent_text(
      estimate_by_round(busy_s, each.mean_s_by_start(), std::divides<double>()).median);
}

std::string load_table(const SheetRuns& runs) {
  const Measurement& each = runs.of("gpu0-bottleneck").cases.front();
  const std::vector<std::vector<double>> busy_s = busy_seconds(each);
  const Traffic traffic = traffic_of(each.workload());
  const std::vector<Rows> split = chunk(each.workload().batch_size(), each.workload().ranks);
  FindingTable table{
      .title = "Each device in a step of DataParallel",
      .columns = {"Device", "Rows", "Busy", "Of a step", "Bytes in", "Bytes out", "Memory"}};
  const std::vector<DeviceMemory> memory = planned_memory(each.workload());
  for (std::size_t i = 0; i < busy_s.size(); ++i) {
    table.rows.push_back({std::to_string(i), std::to_string(i < split.size() ? split[i].count : 0),
                          time_text(estimate_of(busy_s[i])), busy_share_text(each, busy_s[i]),
                          human_bytes(traffic.in_bytes[i]), human_bytes(traffic.out_bytes[i]),
                          human_bytes(memory[i].bytes)});
  }
  return markdown_table(table);
}

/// The mean of the devices but the first, by start.
std::vector<double> others_busy_s(const std::vector<std::vector<double>>& busy_s) {
  std::vector<double> sums(busy_s.front().size());
  for (std::size_t i = 1; i < busy_s.size(); ++i) {
    sums = by_round(sums, busy_s[i], std::plus<double>());
  }
  for (double& each : sums) each /= static_cast<double>(busy_s.size() - 1);
  return sums;
}

/// Device 0's busy time as a multiple of the others'.
Estimate load_ratio(const std::vector<std::vector<double>>& busy_s) {
  return estimate_by_round(busy_s.front(), others_busy_s(busy_s), [](double first, double other) {
    return other > 0 ? first / other : 1;
  });
}

std::string busy_answer(const Results& results) {
  const auto busy_s = busy_seconds(results.cases.front());
  return fmt::format("Device 0 is busy for {} in a step, {} the time of the others.",
                     time_text(estimate_of(busy_s.front())), factor_text(load_ratio(busy_s)));
}

std::string load_answer(const Results& results) {
  const Side side = side_of(load_ratio(busy_seconds(results.cases.front())), 1);
  return fmt::format("{}. {}",
                     side == Side::kAbove   ? "Yes"
                     : side == Side::kBelow ? "No"
                                            : "That is unclear",
                     busy_answer(results));
}

std::string equal_use_answer(const Results& results) {
  constexpr double kEqual = 1.1;
  const Measurement& each = results.cases.front();
  const std::vector<std::vector<double>> all = busy_seconds(each);
  std::vector<std::string> shares;
  for (const std::vector<double>& busy_s : all) {
    shares.push_back(busy_share_text(each, busy_s));
  }
  const Estimate ratio = load_ratio(all);
  const bool is_equal = ratio.low > 1 / kEqual && ratio.high < kEqual;
  const bool is_unequal = ratio.low >= kEqual || ratio.high <= 1 / kEqual;
  return fmt::format("{}: they compute during {} of a step, device 0 first.",
                     is_equal     ? "Yes, within a tenth"
                     : is_unequal ? "No"
                                  : "That is unclear",
                     list_text(shares));
}

/// The device that is busy longest, and the longest of what only device 0 does.
std::string where_answer(const Results& results) {
  const Measurement& each = results.cases.front();
  const auto busy_s = busy_seconds(each);
  const std::string both = fmt::format("it computes for {} in a step, the others for {}",
                                       time_text(estimate_of(busy_s.front())),
                                       time_text(estimate_of(others_busy_s(busy_s))));
  const Side side = side_of(load_ratio(busy_s), 1);
  std::vector<PartSeries> parts;
  for (const auto& [phase, words] :
       {std::pair<std::string_view, const char*>{"loss", "the loss"},
        {"optimizer", "the update"},
        {"communication", "the exchange of parameters, rows and gradients"}}) {
    parts.push_back({words, each.phase_s_by_start(phase)});
  }
  const LargestPart largest = largest_of(parts, each.mean_s_by_start());
  return fmt::format("{}: {}. The longest of what only it does is {}{}: {} of a step.",
                     side == Side::kAbove   ? "At device 0"
                     : side == Side::kBelow ? "Not in what device 0 computes"
                                            : "Whether device 0 computes longer is unclear",
                     both, list_text(largest.names),
                     largest.is_alone() ? "" : " (indistinguishable)", percent_text(largest.share));
}

// Homework 1.

std::string scaling_line(const Results& results) {
  const std::vector<std::string> keys = keys_within_cores(results);
  if (keys.size() < 2)
    return "Only one rank has a core of its own, so there is nothing to compare.";
  const Measurement& many = results.at(keys.back());
  const int ranks = many.workload().ranks;
  const Estimate gain = results.compare(results.cases.front().what().key, many.what().key).speed();
  const Side side = side_of(gain, 0.9 * ranks);
  return fmt::format("{}: {} reach {}, where linear would be {}x.",
                     side == Side::kAbove   ? "Yes, within a tenth"
                     : side == Side::kBelow ? "No"
                                            : "That is unclear",
                     counted(ranks, "rank"), factor_text(gain), ranks);
}

/// Seconds of the three products of a layer on one device: output, gradients of input and weight.
double products_of_layer_s(const MachineCard& card, std::int64_t width, std::int64_t rows) {
  const Tensor activations{.rows = rows, .cols = width}, weight{.rows = width, .cols = width};
  const auto seconds = [&](const Gemm& gemm) {
    return device_op_s(gemm, card, {.mesh = Mesh::of_data(0, 2)});
  };
  return seconds({.c = activations, .a = activations, .b = weight, .transpose_b = true}) +
         seconds({.c = activations, .a = activations, .b = weight}) +
         seconds({.c = weight, .a = activations, .b = activations, .transpose_a = true});
}

/// The least batch of two devices with which the products of a layer take longer than the
/// all-reduce of its gradients.
std::int64_t computing_from(const MachineCard& card, std::int64_t width) {
  const double reduce_s = all_reduce_s(card, 4 * static_cast<double>(width * width), 2);
  std::int64_t too_few = 0, enough = 1 << 20;  // rows of each
  while (enough - too_few > 1) {
    const std::int64_t rows = (too_few + enough) / 2;
    (products_of_layer_s(card, width, rows) > reduce_s ? enough : too_few) = rows;
  }
  return 2 * enough;
}

std::string bottleneck_answer(const SheetRuns& runs) {
  const MachineCard& card = runs.gpus();
  if (card.max_ranks() < 2) {
    return fmt::format("Not on {}, which has one device.", card.name);
  }
  return fmt::format(
      "Simulated, for two GPUs of {}: up to a batch of about {} at width 8192 and {} at width "
      "1024.",
      card.name, computing_from(card, 8192), computing_from(card, 1024));
}

std::string bottleneck_reason(const SheetRuns& runs) {
  constexpr std::int64_t kWidth = 8192, kBatch = 64;
  const MachineCard& card = runs.gpus();
  if (card.max_ranks() < 2) return "One device has no gradients to sum with others.";
  const double bytes = 4.0 * kWidth * kWidth;
  const double reduce_s = all_reduce_s(card, bytes, 2);
  const double products_s = products_of_layer_s(card, kWidth, kBatch / 2);
  return fmt::format(
      "A layer of width {} has {} of gradients, which two GPUs sum in {}; its products at batch {} "
      "take two GPUs {}. Both grow with the square of the width, so width matters only where "
      "messages and products are small. The sheet expects the large model to be bound by "
      "computing; at batch {} it is{}.",
      kWidth, human_bytes(static_cast<std::int64_t>(bytes)), time_text(reduce_s), kBatch,
      time_text(products_s), kBatch, products_s > reduce_s ? "" : " not");
}

std::string acceptable_answer(const Results& results) {
  const Comparison duel = results.compare("data-parallel", "ddp");
  const std::string ddp =
      fmt::format("DDP takes {} as long on the same devices", factor_text(duel.ratio));
  switch (duel.word) {
    case Word::kSlower:
      return fmt::format("Here, for one: {}.", ddp);
    case Word::kFaster:
      return fmt::format("Not for speed: {}.", ddp);
    case Word::kNoDifference:
      return fmt::format("Where speed decides, both are: {}.", ddp);
    case Word::kUndecided:
      return fmt::format("Whether speed speaks against it is unclear: {}.", ddp);
    case Word::kTooFewStarts:
      return fmt::format("Whether speed speaks against it: {}; {}.", too_few_text(duel.compared),
                         ddp);
  }
  return "";
}

/// Whether (T1 + d) / (Tn + d) foretells the speed-up with each pause, by rounds.
std::string delay_law(const Results& results) {
  constexpr double kAgrees = 1.1;
  const int ranks = compared_with_one(results.setting);
  const auto at = [&](int count, int ms) -> const Measurement& {
    return results.at(fmt::format("ranks-{}-delay-{}", count, ms));
  };
  std::vector<std::string> pairs;
  bool holds = true, fails = false;
  for (const int ms : {10, 20}) {
    const auto law = [&](double one_s, double many_s) {
      return (one_s + 1e-3 * ms) / (many_s + 1e-3 * ms);
    };
    const Measurement &one = at(1, ms), &many = at(ranks, ms);
    const Estimate off =
        estimate_by_round(std::array{one.mean_s_by_start(), many.mean_s_by_start(),
                                     at(1, 0).mean_s_by_start(), at(ranks, 0).mean_s_by_start()},
                          [&](std::span<const double> s) { return s[0] / s[1] / law(s[2], s[3]); });
    holds = holds && off.low > 1 / kAgrees && off.high < kAgrees;
    fails = fails || off.low >= kAgrees || off.high <= 1 / kAgrees;
    pairs.push_back(
        fmt::format("{} at {} ms, where {} was measured",
                    factor_text(law(at(1, 0).mean_s().median, at(ranks, 0).mean_s().median)), ms,
                    factor_text(results.compare(one.what().key, many.what().key).speed())));
  }
  return fmt::format("{}: from the steps without a pause it gives {}.",
                     holds   ? "Amdahl's law holds within a tenth"
                     : fails ? "Amdahl's law does not hold here"
                             : "Whether Amdahl's law holds within a tenth is unclear",
                     fmt::join(pairs, ", and "));
}

std::string delay_limit(const Results& results) {
  constexpr double kPauseS = 0.01;
  return factor_text((results.at("ranks-1-delay-0").mean_s().median + kPauseS) / kPauseS);
}

std::string batch_improves(const Results& results) {
  const int ranks = compared_with_one(results.setting);
  const auto gain = [&](int batch) {
    return results.compare(fmt::format("ranks-1-batch-{}", batch),
                           fmt::format("ranks-{}-batch-{}", ranks, batch));
  };
  const Comparison small = gain(32), large = gain(256);
  const Side side = side_of(relative_gain(results, large, small), 1);
  return fmt::format("{}: {} reach {} at batch 32 and {} at batch 256.",
                     side == Side::kAbove   ? "Yes"
                     : side == Side::kBelow ? "No, it gets worse"
                                            : "That is unclear",
                     counted(ranks, "rank"), factor_text(small.speed()),
                     factor_text(large.speed()));
}

// Pipelines.

std::string order_answer(const SheetRuns&) {
  std::vector<std::string> lists;
  for (const auto& [words, schedule] : {std::pair{"naive", PipelineSchedule::kNaive},
                                        {"GPipe", PipelineSchedule::kGPipe},
                                        {"1F1B", PipelineSchedule::kOneForwardOneBackward}}) {
    const WrittenSchedule written = built_in_schedule({2, 4, schedule}, {}, false);
    std::vector<std::string> passes;
    for (const ScheduleEntry& entry : written.stages.front()) {
      passes.push_back(entry.text);
    }
    lists.push_back(fmt::format("{} {}", words, fmt::join(passes, " ")));
  }
  return fmt::format("Stage 0 of 2, with 4 micro-batches: {}.", fmt::join(lists, "; "));
}

/// GPipe beside 1F1B, by running the lists of both.
std::string bubbles_answer(const SheetRuns&) {
  using enum PipelineSchedule;
  int equal = 0, all = 0, most_kept = 0, most_micro_batches = 0;
  for (int stages = 2; stages <= 8; ++stages) {
    for (const int times : {1, 2, 3, 4}) {
      const int count = times * stages;
      const WrittenSchedule gpipe = built_in_schedule({stages, count, kGPipe}, {}, false);
      const WrittenSchedule in_turn =
          built_in_schedule({stages, count, kOneForwardOneBackward}, {}, false);
      const ScheduleFindings with_gpipe = examine(gpipe), with_1f1b = examine(in_turn);
      ++all;
      equal += with_gpipe.step == with_1f1b.step ? 1 : 0;
      most_kept = std::ranges::max(with_1f1b.kept);
      most_micro_batches = std::ranges::max(with_gpipe.kept);
    }
  }
  return fmt::format(
      "In {} of {} pipelines of 2 to 8 stages that take equally long, GPipe and 1F1B need the same "
      "time; with {} micro-batches, the largest number here, a stage of 1F1B keeps {} of them at "
      "most, one of GPipe {} (calculated from their lists).",
      equal, all, most_micro_batches, most_kept, most_micro_batches);
}

std::string losses_answer(const Results& results) {
  const double furthest = last_loss_difference(results.cases, results.at("naive"));
  return fmt::format("{}: the last losses differ from naive's by a share of {:.1e} at most.",
                     is_rounding(furthest) ? "No" : "Yes", furthest);
}

// The list.

using Conclude = std::string (*)(const Results& results);

SheetName concluded(const char* experiment, const char* word, const char* about, Conclude conclude,
                    SheetNameKind kind = SheetNameKind::kSentence) {
  return {.name = fmt::format("{}.{}", experiment, word),
          .about = about,
          .experiments = {experiment},
          .text = [=](const SheetRuns& runs) { return conclude(runs.of(experiment)); },
          .kind = kind,
          .is_of_times = true};
}

SheetName stated(std::string name, const char* about, std::vector<std::string> experiments,
                 std::string (*text)(const SheetRuns& runs),
                 SheetNameKind kind = SheetNameKind::kSentence) {
  return {.name = std::move(name),
          .about = about,
          .experiments = std::move(experiments),
          .text = text,
          .kind = kind};
}

std::vector<SheetName> names_of_practical2() {
  return {
      concluded("matmul", "rows", "whether products take as many times longer as they have rows",
                rows_answer),
      concluded("matmul", "bits", "products in bf16 against fp32", bits_answer),
  };
}

std::vector<SheetName> names_of_practical3() {
  return {
      stated("machine", "the machine, and which experiments are INVALID, and why", {},
             machine_note),
      stated("size", "the model measured, and what is simulated", {}, size_note),
      stated(std::string(kChecklistName),
             "the checklist for benchmarks; a sheet without it has it at its foot", {},
             checklist_note),
      stated("batch-sweep.loss", "whether a loss near 1 is right", {"batch-sweep"}, loss_answer),
      concluded("batch-sweep", "linear", "whether throughput grows with the batch", linear_answer),
      concluded("batch-sweep", "efficiency", "time per sample at batch 128 and 32",
                efficiency_answer),
      concluded("batch-sweep", "efficiency-why", "why time per sample changes", efficiency_reason),
      concluded("io-delay", "throughput", "throughput with and without the pause", disk_answer),
      concluded("io-delay", "utilization", "whether the device is fully used", utilization_answer),
      concluded("io-delay", "amdahl", "the wait for the disk against 30 %", amdahl_answer),
      stated("profile.region", "forward, loss and backward by operation (a table)", {"profile"},
             region_table, SheetNameKind::kTable),
      concluded("profile", "most", "the operation that takes most of them", most_time_answer),
      concluded("profile", "most-why", "how many products it is", most_time_reason),
      stated("profile.backward-why", "backward's products against forward's", {"profile"},
             backward_reason),
  };
}

std::vector<SheetName> names_of_practical5() {
  return {
      concluded("data-parallel", "proportion", "speed-up and efficiency", proportion_answer),
      stated("gpu0-bottleneck.devices", "busy time, bytes and memory by device (a table)",
             {"gpu0-bottleneck"}, load_table, SheetNameKind::kTable),
      concluded("gpu0-bottleneck", "device-0", "device 0's busy time against the others'",
                busy_answer),
      concluded("gpu0-bottleneck", "load", "whether device 0 is more loaded", load_answer),
      concluded("gpu0-bottleneck", "equal", "whether all devices are used equally",
                equal_use_answer),
      concluded("gpu0-bottleneck", "where", "where the bottleneck is", where_answer),
  };
}

std::vector<SheetName> names_of_homework1() {
  return {
      concluded("strong-scaling", "linear", "whether the speed-up is linear", scaling_line),
      concluded("amdahl", "linear", "whether the speed-up is linear at that batch", scaling_line),
      stated("communication.bottleneck", "the batch up to which communication is longer", {},
             bottleneck_answer),
      stated("communication.bottleneck-why", "bytes and flops of a layer", {}, bottleneck_reason),
      concluded("dp-vs-ddp", "acceptable", "when DataParallel is acceptable", acceptable_answer),
      concluded("delay", "amdahl", "(T1 + d) / (Tn + d) against the measurement", delay_law),
      concluded("delay", "limit", "the limit that 10 ms set to the speed-up", delay_limit,
                SheetNameKind::kFigure),
      concluded("batch-scaling", "improves", "speed-up at batch 32 and 256", batch_improves),
  };
}

std::vector<SheetName> names_of_pipelines() {
  return {
      stated("pipeline.order", "the passes of a stage in each schedule", {}, order_answer),
      stated("pipeline.bubbles", "GPipe's time and memory beside 1F1B's", {}, bubbles_answer),
      stated("pipeline.losses", "whether the schedule changes the losses", {"pipeline"},
             [](const SheetRuns& runs) { return losses_answer(runs.of("pipeline")); }),
  };
}

}  // namespace

const std::vector<SheetName>& sheet_answers() {
  static const std::vector<SheetName> all = [] {
    std::vector<SheetName> names = names_of_practical3();
    for (const auto& more : {names_of_practical2(), names_of_practical5(), names_of_homework1(),
                             names_of_pipelines()}) {
      names.insert(names.end(), more.begin(), more.end());
    }
    return names;
  }();
  return all;
}

}  // namespace barestep
