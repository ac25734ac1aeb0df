// The sentences of sheets that have a function of their own. Each draws on its figures and says
// something else if they say something else.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "core/units.h"
#include "lab/experiments/all.h"
#include "lab/sheet_names.h"
#include "lab/workload.h"
#include "parallel/schemes/data_parallel.h"
#include "profiler/data_parallel_account.h"

namespace barestep {
namespace {

/// The last case within the cores; the last of all if only one is.
const Measurement& largest_of_cores(const Results& results) {
  const std::vector<std::string> keys = keys_within_cores(results);
  return keys.size() > 1 ? results.at(keys.back()) : results.cases.back();
}

std::string model_text(const Workload& workload) {
  return fmt::format("{} x {}", workload.dim(), workload.depth());
}

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

std::string size_note(const SheetRuns& runs) {
  const Setting setting = runs.setting(), course = new_setting(false, true, 1);
  const bool is_course = setting.dim == course.dim && setting.depth == course.depth;
  std::string text = fmt::format(
      "Measured with a model of {} x {} (width x layers){}, on {}.", setting.dim, setting.depth,
      is_course ? ", the course's"
                : fmt::format(" in place of the course's {} x {}", course.dim, course.depth),
      setting.on_gpu ? "GPUs" : "the CPU: its ranks and devices are cores, not GPUs");
  return text + fmt::format(
                    " Columns headed \"Simulated\" are the course's size on {}: calculated by "
                    "mlp_lab's simulator, not measured.",
                    runs.gpus().name);
}

// Practical 3.

std::string loss_answer(const SheetRuns& runs) {
  constexpr double kNear = 0.2;
  const Measurement& each = runs.of("batch-sweep").at("batch-64");
  const double loss = each.starts().front().ranks.front().loss.back();
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

std::string linear_reason(const Results& sweep) {
  const Measurement &small = sweep.at("batch-32"), &large = sweep.at("batch-128");
  return fmt::format(
      "The update reads and writes every parameter once in a step of any batch: it takes {} of a "
      "step at batch 32 and {} at batch 128.",
      percent_text(share_of(small, "optimizer").median),
      percent_text(share_of(large, "optimizer").median));
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
  const Measurement &without = results.at("no-delay"), &with = results.at("workers-0");
  return fmt::format(
      "{} samples/s instead of {}. {}", number_text(with.samples_per_s().median),
      number_text(without.samples_per_s().median),
      sentence_of(results.compare("no-delay", "workers-0"), "with the pause", "without it"));
}

std::string disk_reason(const Results& results) {
  const Measurement &without = results.at("no-delay"), &with = results.at("workers-0");
  const double pause_s = 1e-3 * with.workload().config.data.io_delay_ms;
  const double expected_s = without.mean_s().median + pause_s;
  return fmt::format("A step of {} and {} more make {}; measured, it takes {}.",
                     time_text(without.mean_s().median), time_text(pause_s), time_text(expected_s),
                     time_text(with.mean_s()));
}

/// The wait for the disk, by start.
std::vector<double> disk_shares(const Results& results) {
  static constexpr std::array<std::string_view, 2> kDisk = {"data", "injected"};
  return results.at("workers-0").share_by_start(kDisk);
}

std::string utilisation_answer(const Results& results) {
  const Estimate computing =
      estimate_of(results.at("workers-0").share_by_start(computing_phases()));
  return fmt::format("{}: it computes during {} of a step, and waits for the disk during {}.",
                     by_side(side_of(computing, 0.9), "Nearly", "No", "That is unclear"),
                     percent_text(computing), percent_text(estimate_of(disk_shares(results))));
}

std::string amdahl_answer(const Results& results) {
  constexpr double kExercise = 0.3;
  const Estimate disk = estimate_of(disk_shares(results));
  const Side side = side_of(disk, kExercise);
  const std::string here = fmt::format(
      "in task 3 the wait is {} of a step, so with free computing a step would be {} as fast",
      percent_text(disk), factor_text(reciprocal(disk)));
  if (side == Side::kOpen) return fmt::format("Yes, as far as can be told: {}.", here);
  return fmt::format("The law does, the number does not: {}, {} 3.33x.", here,
                     side == Side::kAbove ? "less than" : "more than");
}

std::string exercise_answer(const SheetRuns&) {
  return fmt::format(
      "With 30 % of I/O the limit is {}; with computing 10 times as fast it is {} (calculated).",
      factor_text(1 / 0.3), factor_text(amdahl_speed_up(0.3, 10)));
}

/// Whether an op is in the part of a step that the sheet profiles.
bool is_in_region(const OpTime& op) {
  return op.phase == "forward" || op.phase == "loss" || op.phase == "backward";
}

std::vector<double> region_seconds(const Measurement& step) {
  return op_seconds(step, is_in_region);
}

/// The operations of the region by PyTorch's names, each the sum of its calls as key_averages()
/// shows it, as shares of the region by start; the longest first.
std::vector<PartSeries> region_parts(const Measurement& step) {
  const std::vector<double> all = region_seconds(step);
  std::vector<PartSeries> parts;
  for (const OpTime& op : step.ops()) {
    const std::string_view name = pytorch_name(op);
    if (!is_in_region(op) || std::ranges::find(parts, name, &PartSeries::name) != parts.end()) {
      continue;
    }
    parts.push_back({std::string(name), by_round(op_seconds(step,
                                                            [&](const OpTime& other) {
                                                              return is_in_region(other) &&
                                                                     pytorch_name(other) == name;
                                                            }),
                                                 all, std::divides<double>())});
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
        {each.name, time_text(estimate_of(by_round(each.values, all, std::multiplies<double>()))),
         percent_text(estimate_of(each.values))});
  }
  return markdown_table(table);
}

std::string most_time_answer(const Results& results) {
  const Measurement& step = results.at("profiled");
  const std::vector<PartSeries> parts = region_parts(step);
  if (parts.empty()) return "No operation was recorded.";
  const LargestPart longest = largest_of(parts);
  const std::string all = time_text(estimate_of(region_seconds(step)));
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
  const LargestPart largest = largest_of(parts);
  const std::string& longest = largest.names.front();
  if (!largest.is_alone() || longest == "aten::mm") return counts + ".";
  if (longest == "aten::addmm") return counts + ", and takes longer although it has fewer.";
  return counts + fmt::format(
                      "; {} computes less than either, so memory, not arithmetic, makes "
                      "it long.",
                      longest);
}

std::string backward_reason(const Results& results) {
  const auto seconds = [&](std::string_view phase) {
    return op_seconds(results.at("profiled"), [&](const OpTime& op) { return op.phase == phase; });
  };
  const auto layers = static_cast<double>(results.at("profiled").workload().depth());
  const double products = (2 * layers - 1) / layers;
  const Estimate times =
      estimate_of(by_round(seconds("backward"), seconds("forward"), std::divides<double>()));
  return fmt::format(
      "Its products do {} the flops of forward's, and it takes {} of that factor; the rest is the "
      "speed of these products and what else the two passes read and write.",
      factor_text(products), percent_text(times.median / products));
}

// Practical 5.

std::string gain_reason(const Results& results) {
  const Measurement& several = results.cases.back();
  return fmt::format(
      "Of a step on {}, {} are the exchange (parameters out, rows out, outputs back, gradients "
      "back), and {} the loss and the update, which device 0 makes alone.",
      counted(several.workload().ranks, "device"), percent_text(share_of(several, "reduce").median),
      percent_text(share_of(several, "loss").median + share_of(several, "optimizer").median));
}

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

std::string pieces_of(std::int64_t rows, int devices) {
  std::vector<std::int64_t> pieces;
  for (const Rows& piece : chunk(rows, devices)) pieces.push_back(piece.count);
  return fmt::format("{}", fmt::join(pieces, "/"));
}

std::string by_hand_answer(const SheetRuns&) {
  return fmt::format(
      "No: the training loop hands over one batch, and 64 rows reach 3 devices as {}.",
      pieces_of(64, 3));
}

std::string division_answer(const SheetRuns&) {
  return fmt::format(
      "In one piece of ceil(64 / n) rows for each device, in order, the last with what is left: {} "
      "on 2 devices, {} on 3, {} on 5.",
      pieces_of(64, 2), pieces_of(64, 3), pieces_of(64, 5));
}

std::string evenness_answer(const SheetRuns&) {
  return fmt::format(
      "Equal where n divides the batch (64 on 2 devices: {}, on 4: {}), else uneven (on 3: {}); 5 "
      "rows on 4 devices are {}, so one device has nothing to do.",
      pieces_of(64, 2), pieces_of(64, 4), pieces_of(64, 3), pieces_of(5, 4));
}

/// What each device does in a step, as mlp_dp prints it.
struct DeviceLoads {
  std::vector<std::vector<double>> busy_s;  // by device and start
  Traffic traffic;
};

bool is_computing(const OpTime& op) {
  return std::ranges::find(computing_phases(), op.phase) != computing_phases().end();
}

DeviceLoads loads_of(const Measurement& each) {
  DeviceLoads loads;
  const int devices = each.workload().ranks;
  for (int device = 0; device < devices; ++device) {
    loads.busy_s.push_back(op_seconds(
        each, [&](const OpTime& op) { return op.device == device && is_computing(op); }));
  }
  const WorkloadPrograms programs(each.workload());
  loads.traffic =
      traffic_of(programs.step(), devices, each.workload().on_gpu ? Route::kRing : Route::kStar);
  return loads;
}

/// DataParallel on as many devices as answers may use, else on the fewest.
const Measurement& devices_of(const Results& results) {
  const std::vector<std::string> keys = keys_within_cores(results);
  return keys.empty() ? results.cases.front() : results.at(keys.back());
}

std::string load_table(const SheetRuns& runs) {
  const Measurement& each = devices_of(runs.of("gpu0-bottleneck"));
  const DeviceLoads loads = loads_of(each);
  const std::vector<Rows> split = chunk(each.workload().batch_size(), each.workload().ranks);
  FindingTable table{
      .title = "Each device in a step of DataParallel",
      .columns = {"Device", "Rows", "Busy", "Of a step", "Bytes in", "Bytes out", "Memory"}};
  const std::vector<DeviceMemory> memory = planned_memory(each.workload());
  for (std::size_t i = 0; i < loads.busy_s.size(); ++i) {
    const auto share = by_round(loads.busy_s[i], each.mean_s_by_start(), std::divides<double>());
    table.rows.push_back({std::to_string(i), std::to_string(i < split.size() ? split[i].count : 0),
                          time_text(estimate_of(loads.busy_s[i])),
                          percent_text(estimate_of(share).median),
                          human_bytes(loads.traffic.in_bytes[i]),
                          human_bytes(loads.traffic.out_bytes[i]), human_bytes(memory[i].bytes)});
  }
  return markdown_table(table);
}

/// Device 0's busy time as a multiple of the mean of the others', by start.
std::vector<double> load_ratio(const DeviceLoads& loads) {
  std::vector<double> others(loads.busy_s.front().size());
  for (std::size_t i = 1; i < loads.busy_s.size(); ++i) {
    others = by_round(others, loads.busy_s[i], std::plus<double>());
  }
  const auto count = static_cast<double>(loads.busy_s.size() - 1);
  return by_round(loads.busy_s.front(), others,
                  [&](double first, double sum) { return sum > 0 ? first * count / sum : 1; });
}

std::string load_answer(const Results& results) {
  const DeviceLoads loads = loads_of(devices_of(results));
  const Estimate ratio = estimate_of(load_ratio(loads));
  const Side side = side_of(ratio, 1);
  return fmt::format("{}: it is busy for {}, {} the time of the others.",
                     side == Side::kAbove   ? "Yes"
                     : side == Side::kBelow ? "No"
                                            : "That is unclear",
                     time_text(estimate_of(loads.busy_s.front())), factor_text(ratio));
}

std::string load_reason(const Results& results) {
  const Measurement& each = devices_of(results);
  const Traffic traffic = loads_of(each).traffic;
  const std::int64_t moved =
      std::accumulate(traffic.bytes.begin(), traffic.bytes.end(), std::int64_t{0});
  return fmt::format(
      "It alone computes the loss and the update ({} of its step), and {} of the {} that a step "
      "moves between devices go in or out of it.",
      percent_text(share_of(each, "loss").median + share_of(each, "optimizer").median),
      human_bytes(traffic.in_bytes[0] + traffic.out_bytes[0]), human_bytes(moved));
}

std::string equal_use_answer(const Results& results) {
  constexpr double kEqual = 1.1;
  const Measurement& each = devices_of(results);
  const DeviceLoads loads = loads_of(each);
  std::vector<std::string> shares;
  for (const std::vector<double>& busy_s : loads.busy_s) {
    const auto share = by_round(busy_s, each.mean_s_by_start(), std::divides<double>());
    shares.push_back(percent_text(estimate_of(share).median));
  }
  const Estimate ratio = estimate_of(load_ratio(loads));
  const bool is_equal = ratio.low > 1 / kEqual && ratio.high < kEqual;
  const bool is_unequal = ratio.low >= kEqual || ratio.high <= 1 / kEqual;
  return fmt::format("{}: device 0, 1, ... compute during {} of a step.",
                     is_equal     ? "Yes, within a tenth"
                     : is_unequal ? "No"
                                  : "That is unclear",
                     list_text(shares));
}

std::string equal_use_reason(const Results& results) {
  const Measurement& each = devices_of(results);
  return fmt::format(
      "Forward and backward are divided ({} rows), the rest is device 0's; while it works alone or "
      "moves data, the others idle.",
      pieces_of(each.workload().batch_size(), each.workload().ranks));
}

std::string where_answer(const Results& results) {
  static constexpr std::array<std::string_view, 3> kAlone = {"loss", "optimizer", "reduce"};
  const Measurement& each = devices_of(results);
  std::vector<PartSeries> parts;
  for (const std::string_view& phase : kAlone) {
    parts.push_back({phase == "reduce" ? "the exchange of parameters, rows and gradients"
                     : phase == "loss" ? "the loss"
                                       : "the update",
                     each.share_by_start(std::span(&phase, 1))});
  }
  const LargestPart largest = largest_of(parts);
  return fmt::format(
      "At {} on device 0: {} of a step{}; loss, update and exchange together are {}.",
      largest.names.front(), percent_text(largest.share),
      largest.is_alone() ? ""
                         : fmt::format(" (indistinguishable from {})",
                                       list_text({largest.names.begin() + 1, largest.names.end()})),
      percent_text(estimate_of(each.share_by_start(kAlone))));
}

/// Parameters that leave device 0 and gradients that reach it.
std::int64_t bytes_through_device_0(const Workload& workload, int devices) {
  const WorkloadPrograms programs(workload);
  const std::int64_t parameters = programs.steps().spec().model.layout.parameters();
  return 2 * (devices - 1) * 4 * parameters;
}

std::string scaling_answer(const Results& results) {
  static constexpr std::array<std::string_view, 3> kAlone = {"loss", "optimizer", "reduce"};
  const Measurement& each = devices_of(results);
  const Estimate alone = estimate_of(each.share_by_start(kAlone));
  const Workload& workload = each.workload();
  const int n = workload.ranks;
  return fmt::format(
      "With {} devices, {} of a step are device 0's alone, and are not divided by more devices; {} "
      "pass through it, with {} devices {} and with {} devices {}.",
      n, percent_text(alone), human_bytes(bytes_through_device_0(workload, n)), 2 * n,
      human_bytes(bytes_through_device_0(workload, 2 * n)), 4 * n,
      human_bytes(bytes_through_device_0(workload, 4 * n)));
}

std::string limitation_answer(const Results& results) {
  const Measurement& several = results.cases.back();
  const Workload& workload = several.workload();
  return fmt::format(
      "In every step, whatever the batch, {} of parameters and gradients pass through device 0 "
      "with "
      "{} devices, and {} with 8; here the exchange is {} of a step.",
      human_bytes(bytes_through_device_0(workload, workload.ranks)), workload.ranks,
      human_bytes(bytes_through_device_0(workload, 8)), percent_text(share_of(several, "reduce")));
}

std::string advantage_answer(const SheetRuns& runs) {
  const Workload& several = runs.of("data-parallel").cases.back().workload();
  return fmt::format(
      "One line, `model = nn.DataParallel(model)`, and nothing is launched: one process drives {} "
      "here (`{}`).",
      counted(several.ranks, "device"), command_line_of(several));
}

// Homework 1.

std::string warmup_note(const SheetRuns& runs) {
  const Measurement& each = runs.of("warmup").at("from-start");
  const auto warmup = static_cast<std::int64_t>(each.warmup_steps());
  const auto starts = static_cast<std::int64_t>(each.starts().size());
  const std::int64_t steps = each.workload().steps();
  return fmt::format(
      "As it was run: {} of {} each; the first {} of each are warm-up, and {} are measured.",
      counted(starts, "start"), counted(steps, "step"), warmup,
      counted(starts * (steps - warmup), "step"));
}

std::string scaling_line(const Results& results) {
  const Measurement& many = largest_of_cores(results);
  const int ranks = many.workload().ranks;
  if (ranks == 1) return "Only one rank was run, so there is nothing to compare.";
  const Estimate gain = results.compare(results.cases.front().what().key, many.what().key).speed();
  const Side side = side_of(gain, 0.9 * ranks);
  return fmt::format("{}: {} reach {}, where linear would be {}x.",
                     side == Side::kAbove   ? "Yes, within a tenth"
                     : side == Side::kBelow ? "No"
                                            : "That is unclear",
                     counted(ranks, "rank"), factor_text(gain), ranks);
}

/// Where a step of several ranks differs from one rank's.
std::string parts_reason(const Results& results) {
  const Measurement &one = results.cases.front(), &many = largest_of_cores(results);
  const auto products = [](const Measurement& each) {
    return each.phase_s("forward") + each.phase_s("loss") + each.phase_s("backward");
  };
  return fmt::format(
      "On 1 rank and on {}: forward, loss and backward take {} and {}; the update of all weights, "
      "which every rank makes, {} and {}; communication that backward does not hide, {} and {}.",
      many.workload().ranks, time_text(products(one)), time_text(products(many)),
      time_text(one.phase_s("optimizer")), time_text(many.phase_s("optimizer")),
      time_text(one.phase_s("reduce")), time_text(many.phase_s("reduce")));
}

/// Why a task takes another batch than the sheet's.
std::string batch_note(const SheetRuns& runs, std::string_view experiment) {
  const std::int64_t batch = runs.of(experiment).cases.front().workload().batch_size();
  if (batch == 64) return "";
  return fmt::format(
      "This task takes a batch of {}, since at the sheet's 64 ranks have too little to divide for "
      "an effect to be seen.",
      batch);
}

std::string models_note(const SheetRuns& runs) {
  const Results& results = runs.of("comm-vs-compute");
  const auto text = [&](const char* key, const char* course) {
    const std::string here = model_text(results.at(key).workload());
    return here == course ? here + ", as on the sheet"
                          : fmt::format("{} in place of the sheet's {}", here, course);
  };
  return fmt::format("Small is {}; large is {}.", text("small-1", "1024 x 2"),
                     text("large-1", "8192 x 8"));
}

std::string models_reason(const SheetRuns& runs) {
  const Results& results = runs.of("comm-vs-compute");
  const std::int64_t batch = results.cases.front().workload().batch_size();
  return fmt::format(
      "For each byte of its gradients a layer does {:.0f} flops (1.5 x {}) at any width, so depth "
      "and width change neither side of the ratio; what differs is how fast products and messages "
      "of that size are.",
      1.5 * static_cast<double>(batch), batch);
}

/// Seconds of the three products of a layer on one device: output, gradients of input and weight.
double products_of_layer_s(const MachineCard& card, std::int64_t width, std::int64_t rows) {
  const Tensor activations{.rows = rows, .cols = width}, weight{.rows = width, .cols = width};
  const auto seconds = [&](const Gemm& gemm) { return device_op_s(gemm, card, {.ranks = 2}); };
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
  if (card.most_ranks() < 2) {
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
  const std::string best =
      "for a quick trial on two devices of one machine, if a step takes much longer than moving "
      "the "
      "parameters";
  if (duel.is_slower()) {
    return fmt::format("Here, for one: DDP takes {} as long on the same devices. In general {}.",
                       factor_text(duel.ratio), best);
  }
  return fmt::format("{} In general {}.",
                     duel.is_faster()
                         ? fmt::format("Not for speed: DDP takes {} as long on the same devices.",
                                       factor_text(duel.ratio))
                         : fmt::format("Where speed decides, both are: DDP takes {} as long.",
                                       factor_text(duel.ratio)),
                     best);
}

/// Whether (T1 + d) / (Tn + d) foretells the speed-up with each pause.
std::string delay_law(const Results& results) {
  constexpr double kAgrees = 0.1;
  const int ranks = compared_with_one(results.setting);
  const auto key = [](int count, int ms) { return fmt::format("ranks-{}-delay-{}", count, ms); };
  const double one_s = results.at(key(1, 0)).mean_s().median;
  const double many_s = results.at(key(ranks, 0)).mean_s().median;
  std::vector<std::string> pairs;
  double worst = 0;
  for (const int ms : {10, 20}) {
    const double law = (one_s + 1e-3 * ms) / (many_s + 1e-3 * ms);
    const Estimate gain = results.compare(key(1, ms), key(ranks, ms)).speed();
    worst = std::max(worst, std::abs(gain.median / law - 1));
    pairs.push_back(
        fmt::format("{} at {} ms, where {} was measured", factor_text(law), ms, factor_text(gain)));
  }
  return fmt::format(
      "{}: from the steps without a pause it gives {}.",
      worst <= kAgrees ? "Amdahl's law holds within a tenth" : "Amdahl's law does not hold here",
      list_text(pairs));
}

std::string delay_share(const Results& results) {
  const double one_s = results.at("ranks-1-delay-0").mean_s().median;
  const double share = 0.01 / (one_s + 0.01);
  return fmt::format(
      "A pause of 10 ms is serial: {} of one rank's step. So however many ranks there are, and "
      "whatever else they lose, it limits the speed-up to {}.",
      percent_text(share), factor_text(1 / share));
}

std::string batch_improves(const Results& results) {
  const int ranks = compared_with_one(results.setting);
  const auto gains = [&](int batch) {
    const auto step_s = [&](int count) {
      return results.at(fmt::format("ranks-{}-batch-{}", count, batch)).mean_s_by_start();
    };
    return by_round(step_s(1), step_s(ranks), std::divides<double>());
  };
  const std::vector<double> small = gains(32), large = gains(256);
  const Estimate more = estimate_of(by_round(large, small, std::divides<double>()));
  const Side side = side_of(more, 1);
  return fmt::format("{}: {} reach {} at batch 32 and {} at batch 256.",
                     side == Side::kAbove   ? "Yes"
                     : side == Side::kBelow ? "No, it gets worse"
                                            : "That is unclear",
                     counted(ranks, "rank"), factor_text(estimate_of(small)),
                     factor_text(estimate_of(large)));
}

std::string total_cost(const Results& results) {
  const auto total = [&](const char* key) {
    return time_text(median(results.at(key).total_s_by_start()));
  };
  return fmt::format("All {} steps take {} instead of {}.",
                     results.at("balanced").workload().steps(), total("slow-rank-0"),
                     total("balanced"));
}

// The list.

using Conclude = std::string (*)(const Results& results);

SheetName concluded(const char* experiment, const char* word, const char* about,
                    Conclude conclude) {
  return {.name = fmt::format("{}.{}", experiment, word),
          .about = about,
          .experiments = {experiment},
          .text = [=](const SheetRuns& runs) { return runs.concluded(experiment, conclude); }};
}

SheetName stated(std::string name, const char* about, std::vector<std::string> experiments,
                 std::string (*text)(const SheetRuns& runs), bool is_note = false) {
  return {.name = std::move(name),
          .about = about,
          .experiments = std::move(experiments),
          .text = text,
          .is_note = is_note};
}

std::vector<SheetName> names_of_practical3() {
  return {
      stated("machine", "the machine, and which experiments are INVALID (a note)", {}, machine_note,
             true),
      stated("size", "the model measured, and what is simulated (a note)", {}, size_note, true),
      stated("batch-sweep.loss", "whether a loss near 1 is right", {"batch-sweep"}, loss_answer),
      concluded("batch-sweep", "linear", "whether throughput grows with the batch", linear_answer),
      concluded("batch-sweep", "linear-why", "what a larger batch does not divide", linear_reason),
      concluded("batch-sweep", "efficiency", "time per sample at batch 128 and 32",
                efficiency_answer),
      concluded("batch-sweep", "efficiency-why", "why it changes", efficiency_reason),
      concluded("io-delay", "throughput", "throughput with and without the pause", disk_answer),
      concluded("io-delay", "throughput-why", "the step that the formula expects", disk_reason),
      concluded("io-delay", "utilisation", "whether the device is fully used", utilisation_answer),
      stated("amdahl.exercise", "Amdahl's law for 30 % of I/O", {}, exercise_answer),
      concluded("io-delay", "amdahl", "the wait for the disk against 30 %", amdahl_answer),
      stated("profile.region", "forward, loss and backward by operation (a table)", {"profile"},
             region_table),
      concluded("profile", "most", "the operation that takes most of them", most_time_answer),
      concluded("profile", "most-why", "why", most_time_reason),
      concluded("profile", "backward-why", "backward's products against forward's",
                backward_reason),
  };
}

std::vector<SheetName> names_of_practical5() {
  return {
      concluded("data-parallel", "proportion", "speed-up and efficiency", proportion_answer),
      concluded("data-parallel", "proportion-why", "what is not divided", gain_reason),
      stated("data-parallel.advantage", "its main advantage", {"data-parallel"}, advantage_answer),
      concluded("data-parallel", "limitation", "its main limitation", limitation_answer),
      stated("splits.by-hand", "whether code divides the batch", {}, by_hand_answer),
      stated("splits.how", "how the batch is divided", {}, division_answer),
      stated("splits.even", "when it is divided equally", {}, evenness_answer),
      stated("gpu0-bottleneck.devices", "busy time, bytes and memory by device (a table)",
             {"gpu0-bottleneck"}, load_table),
      concluded("gpu0-bottleneck", "load", "device 0 against the others", load_answer),
      concluded("gpu0-bottleneck", "load-why", "what device 0 does alone", load_reason),
      concluded("gpu0-bottleneck", "equal", "whether all devices are used equally",
                equal_use_answer),
      concluded("gpu0-bottleneck", "equal-why", "what is divided", equal_use_reason),
      concluded("gpu0-bottleneck", "where", "where the bottleneck is", where_answer),
      concluded("gpu0-bottleneck", "scaling", "why more devices do not help", scaling_answer),
  };
}

std::vector<SheetName> names_of_homework1() {
  return {
      stated("warmup.counts", "starts, steps and warm-up as they were (a note)", {"warmup"},
             warmup_note, true),
      concluded("strong-scaling", "linear", "whether the speed-up is linear", scaling_line),
      concluded("strong-scaling", "why", "the parts of a step on one rank and on several",
                parts_reason),
      stated(
          "amdahl.batch", "why its batch is not 64 (a note)", {"amdahl"},
          [](const SheetRuns& runs) { return batch_note(runs, "amdahl"); }, true),
      concluded("amdahl", "linear", "whether the speed-up is linear at that batch", scaling_line),
      concluded("amdahl", "why", "the parts of a step on one rank and on several", parts_reason),
      stated("comm-vs-compute.models", "the models in place of the sheet's (a note)",
             {"comm-vs-compute"}, models_note, true),
      stated("comm-vs-compute.why", "flops for each byte of gradients", {"comm-vs-compute"},
             models_reason),
      stated("communication.bottleneck", "the batch up to which communication is longer", {},
             bottleneck_answer),
      stated("communication.bottleneck-why", "bytes and flops of a layer", {}, bottleneck_reason),
      concluded("dp-vs-ddp", "acceptable", "when DataParallel is acceptable", acceptable_answer),
      stated(
          "delay.batch", "why its batch is not 64 (a note)", {"delay"},
          [](const SheetRuns& runs) { return batch_note(runs, "delay"); }, true),
      concluded("delay", "amdahl", "(T1 + d) / (Tn + d) against the measurement", delay_law),
      concluded("delay", "amdahl-why", "the pause as a serial share", delay_share),
      concluded("batch-scaling", "improves", "speed-up at batch 32 and 256", batch_improves),
      concluded("imbalance", "total", "total time with one slow rank", total_cost),
  };
}

}  // namespace

const std::vector<SheetName>& sheet_answers() {
  static const std::vector<SheetName> all = [] {
    std::vector<SheetName> names = names_of_practical3();
    for (const auto& more : {names_of_practical5(), names_of_homework1()}) {
      names.insert(names.end(), more.begin(), more.end());
    }
    return names;
  }();
  return all;
}

}  // namespace barestep
