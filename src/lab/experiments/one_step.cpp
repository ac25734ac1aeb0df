// A step on one device: where its time goes, its first steps, and whether it is reproducible.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string_view>

#include "core/statistics.h"
#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

/// The names in PyTorch's profiler of what an op of a module's step computes with --fusion on; "-"
/// if it has no such op.
std::string_view pytorch_name(const OpTime& op) {
  static const std::map<std::string_view, std::string_view> names = {
      {"bias_relu", "aten::relu"},
      {"relu_grad", "aten::threshold_backward, aten::sum"},
      {"dropout", "aten::native_dropout, aten::native_dropout_backward"},
      {"sum_rows", "aten::sum"},
      {"mse_loss", "aten::mse_loss, aten::mse_loss_backward, aten::threshold_backward"},
      {"cross_entropy", "aten::cross_entropy_loss"},
      {"adam", "aten::_fused_adam_"},
      {"sgd", "aten::_fused_sgd_"},
      {"sum_squares", "aten::linalg_vector_norm"},
      {"clip_factor", "aten::clamp"},
      {"copy", "aten::copy_"},
      {"cast", "aten::to"},
      {"fill", "aten::fill_"},
      {"randn", "aten::normal_"},
      {"all_reduce", "c10d::allreduce_"},
      {"broadcast", "c10d::broadcast_"},
      {"reduce_scatter", "c10d::reduce_scatter_"},
      {"all_gather", "c10d::allgather_"}};
  if (op.name == "gemm") return op.phase == "forward" ? "aten::addmm" : "aten::mm";
  if (op.name.starts_with("Memcpy")) return "aten::copy_";
  const auto found = names.find(op.name);
  return found == names.end() ? "-" : found->second;
}

std::vector<Case> profile_cases(const Setting& setting) {
  Case what = new_case(setting, "profiled", base_workload(setting));
  what.record_ops = true;
  return {what};
}

std::vector<double> phase_op_seconds(const Measurement& measured, std::string_view phase) {
  return op_seconds(measured, [&](const OpTime& op) { return op.phase == phase; });
}

/// Each op's seconds by start: "gemm, backward of net.2".
std::vector<PartSeries> op_series(const Measurement& measured) {
  std::vector<PartSeries> series;
  for (const OpTime& op : measured.ops()) {
    const std::string block = op.block.empty() ? "" : " of " + op.block;
    // Traces name copies as CUDA does, but without a GPU nothing is copied to a device.
    const bool is_copy = !measured.workload().on_gpu && op.name.starts_with("Memcpy");
    series.push_back({fmt::format("{}, {}{}", is_copy ? "copy" : op.name, op.phase, block),
                      op_seconds(measured, [&](const OpTime& other) {
                        return other.name == op.name && other.phase == op.phase &&
                               other.block == op.block;
                      })});
  }
  return series;
}

/// "The longest op is A: SHARE.", or which are indistinguishable.
std::string longest_text(const std::vector<PartSeries>& parts, const std::vector<double>& all,
                         std::string_view what, std::string_view whole) {
  const LargestPart longest = largest_of(parts, all);
  const std::string share = fmt::format("{} of the {} that {}", percent_text(longest.share),
                                        time_text(estimate_of(all)), whole);
  if (longest.is_alone()) return fmt::format("{}: {}, {}.", what, longest.names.front(), share);
  return fmt::format("{}: {}, which are indistinguishable; the first takes {}.", what,
                     list_text(longest.names), share);
}

void add_backward(FindingsOf& all, const Measurement& step) {
  const std::vector<double> forward = phase_op_seconds(step, "forward");
  const std::vector<double> backward = phase_op_seconds(step, "backward");
  const Estimate times = ratio_by_round(backward, forward);
  all.judge("backward", times, 1,
            {"Backward takes longer than forward", "Backward is shorter than forward",
             "Backward and forward take indistinguishable times"},
            fmt::format("{} its time, {} and {}", factor_text(times),
                        time_text(estimate_of(backward)), time_text(estimate_of(forward))));
}

/// A layer stands out if it takes 30 % more than an equal share of all layers.
std::string layer_text(const std::vector<PartSeries>& layers) {
  constexpr double kStandsOut = 1.3;
  std::vector<double> all(layers.front().values.size());
  for (const PartSeries& part : layers) all = by_round(all, part.values, std::plus<double>());
  const double equal = 1 / static_cast<double>(layers.size());
  if (layers.size() < 3) {
    return fmt::format("{} are too few for one to stand out.",
                       counted(static_cast<std::int64_t>(layers.size()), "layer"));
  }
  std::vector<std::string> above, open;
  for (const PartSeries& part : layers) {
    const Estimate share = ratio_by_round(part.values, all);
    const Word side = side_of(share, kStandsOut * equal);
    if (side == Word::kBelow) continue;
    (side == Word::kAbove ? above : open)
        .push_back(fmt::format("{} with {}", part.name, percent_text(share)));
  }
  const std::string of_all =
      fmt::format(" of all layers' time, where an equal share is {}", percent_text(equal));
  if (!above.empty()) {
    return fmt::format("What stands out: {}{}.", list_text(above), of_all);
  }
  if (!open.empty()) {
    return fmt::format("Whether a layer stands out is unclear: {}{}.", list_text(open), of_all);
  }
  return fmt::format("No layer takes {} more than an equal share of all layers' time, {}.",
                     chosen_percent(kStandsOut - 1), percent_text(equal));
}

/// How close to the machine's roof the longest op and the nearest op run; needs measured rates.
void add_roofline(FindingsOf& all, const Results& results) {
  const std::vector<RooflinePoint> points =
      results.card ? roofline_points(results.at("profiled"), *results.card)
                   : std::vector<RooflinePoint>{};
  if (points.empty()) return;
  const RooflinePoint& longest = points.front();
  const bool by_memory =
      longest.flops_per_byte * results.card->memory_bytes_per_s < results.card->flops_per_s;
  const std::string_view above =
      longest.share_of_roof <= 1 ? ""
      : by_memory                ? ", more than all of it, since some data may stay in the caches"
                                 : ", more than the rate measured for products";
  all.timed("roof",
            fmt::format("{} does {:.1f} flops a byte, so {} bounds it (calculated); it reaches {} "
                        "of the machine's roof{}.",
                        longest.op, longest.flops_per_byte, by_memory ? "memory" : "arithmetic",
                        percent_text(longest.share_of_roof), above))
      .plot(roofline_plot(points, *results.card));
}

/// What a clock shows that does not wait for the device: the time until a step's work is queued.
void add_clock(FindingsOf& all, const Measurement& step) {
  constexpr double kHonest = 0.8;  // of the step, from which on it is called nearly right
  const std::vector<double> queued_s = step.queued_s_by_start();
  const Estimate shown = ratio_by_round(queued_s, step.step_s_by_start());
  all.judge(
      "clock", shown, kHonest,
      {"A clock that does not wait for the device is nearly right here",
       "A clock that does not wait for the device is wrong, because the host runs ahead",
       "How wrong a clock is that does not wait for the device is unclear"},
      fmt::format("it shows {}, the time until a step's work is queued, which is {} of the "
                  "step's {}",
                  time_text(estimate_of(queued_s)), percent_text(shown), time_text(step.step_s())));
}

// The part of a step that the course profiles: forward, loss and backward, by PyTorch's names.

bool is_in_region(const OpTime& op) {
  return op.phase == "forward" || op.phase == "loss" || op.phase == "backward";
}

/// The operations of the region, each the sum of its calls as key_averages() shows it, in seconds
/// by start; the longest first.
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
                    [](const PartSeries& part) { return median(part.values); });
  return parts;
}

/// The operation that takes most of the region, and how many products it is.
void add_region(FindingsOf& all, const Measurement& step) {
  const std::vector<PartSeries> parts = region_parts(step);
  if (parts.empty()) return;
  const std::vector<double> all_s = op_seconds(step, is_in_region);
  FindingTable table{.title = "Forward, loss and backward by operation, calls added up",
                     .name = "region-table",
                     .columns = {"Operation, in PyTorch's name", "Time in a step", "Share"}};
  for (const PartSeries& part : parts) {
    table.rows.push_back({part.name, time_text(estimate_of(part.values)),
                          percent_text(ratio_by_round(part.values, all_s))});
  }
  const LargestPart largest = largest_of(parts, all_s);
  const std::string& longest = largest.names.front();
  const std::int64_t layers = step.workload().depth();
  const bool is_product = longest == "aten::mm" || longest == "aten::addmm";
  all.table(std::move(table))
      .timed("most", longest_text(parts, all_s, "Takes most", "forward, loss and backward take"))
      .timed("most-why",
             fmt::format("{} {}.", longest,
                         !is_product ? "computes less than products, so memory, not arithmetic, "
                                       "makes it long"
                         : longest == "aten::mm" ? "is more products than aten::addmm"
                                                 : "takes long although it has fewer products"))
      .untimed("counts",
               fmt::format("aten::mm is {} products of backward, for the gradients of weights and "
                           "inputs (the first layer needs none of its input); aten::addmm is {} of "
                           "forward.",
                           2 * layers - 1, layers))
      .untimed("backward-why",
               fmt::format(
                   "Its products do {} the flops of forward's ({} products against {}); the "
                   "times differ from that by the speed of these products and by what else "
                   "the two passes read and write.",
                   factor_text(static_cast<double>(2 * layers - 1) / static_cast<double>(layers)),
                   2 * layers - 1, layers));
}

Findings profile_findings(const Results& results) {
  const Measurement& step = results.at("profiled");
  const std::vector<double> all_s = op_seconds(step, [](const OpTime&) { return true; });
  const std::vector<PartSeries> ops = op_series(step);
  std::vector<PartSeries> layers;
  PlotSeries by_layer{.name = "ops of the layer"};
  std::vector<std::string> labels;
  const ModelSpec model = spec_of(step.workload().config, DeviceKind::kCpu, nullptr).model;
  for (int layer = 0; layer < model.layers(); ++layer) {
    labels.push_back(model.name_of_layer(layer));
    layers.push_back({labels.back(), op_seconds(step, [&](const OpTime& op) {
                        return op.block == labels.back();
                      })});
    by_layer.points.push_back(
        plot_point(static_cast<double>(layer), estimate_of(layers.back().values), 1e3));
  }
  FindingTable table{.title = "The longest ops of a step",
                     .columns = {"op", "in PyTorch", "time", "of the device's time"}};
  const std::vector<OpTime> names = step.ops();
  for (std::size_t i = 0; i < std::min<std::size_t>(ops.size(), 10); ++i) {
    const Estimate share = ratio_by_round(ops[i].values, all_s);
    table.rows.push_back({ops[i].name, std::string(pytorch_name(names[i])),
                          time_text(estimate_of(ops[i].values)), percent_text(share.median)});
  }
  FindingsOf all(results);
  all.timed("longest",
            longest_text(ops, all_s, "The longest op", "all ops of a profiled step take"));
  add_backward(all, step);
  all.timed("layers", layer_text(layers))
      .table(std::move(table))
      .plot({.title = "Time by layer, forward and backward",
             .y_label = "ms a step",
             .categories = labels,
             .series = {by_layer}});
  add_roofline(all, results);
  add_clock(all, step);
  add_region(all, step);
  return all;
}

std::vector<Case> warmup_cases(const Setting& setting) {
  return {new_case(setting, "from-start", base_workload(setting))};
}

/// Seconds of step `step`, by start.
std::vector<double> seconds_of_step(const Measurement& measured, std::size_t step,
                                    std::string_view phase = "") {
  std::vector<double> all;
  for (const Start& start : measured.starts()) {
    const RankSteps& rank = start.ranks.front();
    const auto& values = phase.empty() ? rank.step_s : rank.phase_s.at(std::string(phase));
    all.push_back(values.at(step));
  }
  return all;
}

/// The phase that contributes most to the extra time of the first step.
std::string reason_text(const Measurement& steps) {
  const std::vector<double> longer_s =
      by_round(seconds_of_step(steps, 0), steps.mean_s_by_start(), std::minus<double>());
  std::vector<PartSeries> parts;
  for (const std::string_view phase : account_phases()) {
    if (!steps.starts().front().ranks.front().phase_s.contains(std::string(phase))) continue;
    parts.push_back(
        {phase_words(phase), by_round(seconds_of_step(steps, 0, phase),
                                      steps.phase_s_by_start(phase), std::minus<double>())});
  }
  if (parts.empty()) return "No phases were recorded, so the longer part is unknown.";
  const LargestPart max = largest_of(parts, longer_s);
  if (!max.is_alone()) {
    return fmt::format("Which part of the extra time is largest is unclear: {}.",
                       list_text(max.names));
  }
  return fmt::format("{} of the extra time is {}, {}.", max.is_most() ? "Most" : "The largest part",
                     max.names.front(), percent_text(max.share));
}

Findings warmup_findings(const Results& results) {
  constexpr double kSlower = 1.1;
  const Measurement& steps = results.at("from-start");
  const std::vector<double> first_s = seconds_of_step(steps, 0);
  const Estimate first = estimate_of(first_s);
  const std::vector<double> steady_s = steps.step_s_by_start();
  const Estimate times = ratio_by_round(first_s, steady_s);
  PlotSeries series{.name = "median of the starts"};
  PlotSeries level{.name = "steady state", .style = SeriesStyle::kDashed};
  FindingTable table{.title = "The first steps",
                     .columns = {"step", "time", "against a steady one"}};
  const std::size_t shown =
      std::min<std::size_t>(20, steps.starts().front().ranks.front().step_s.size());
  for (std::size_t step = 0; step < shown; ++step) {
    const std::vector<double> step_s = seconds_of_step(steps, step);
    const Estimate seconds = estimate_of(step_s);
    series.points.push_back(plot_point(static_cast<double>(step), seconds, 1e3));
    level.points.push_back(plot_point(static_cast<double>(step), 1e3 * steps.step_s().median));
    if (step < 8) {
      table.rows.push_back({std::to_string(step), time_text(seconds),
                            factor_text(ratio_by_round(step_s, steady_s))});
    }
  }
  return FindingsOf(results)
      .judge("first-step", times, kSlower,
             {"The first step takes longer than a steady one",
              fmt::format("The first step is not slower than others by more than {}",
                          chosen_percent(kSlower - 1)),
              "Whether the first step is slower is unclear"},
             fmt::format("{} against {}, {}", time_text(first), time_text(steps.step_s()),
                         factor_text(times)))
      .timed("first-step-why", reason_text(steps))
      .timed("length",
             fmt::format("{} are left out as warm-up; its length is found in blocks of 5 steps.",
                         counted(static_cast<std::int64_t>(steps.warmup_steps()), "step")))
      .table(std::move(table))
      .plot({.title = "The first steps",
             .x_label = "step",
             .y_label = "ms",
             .series = {level, series}});
}

std::vector<Case> reproducibility_cases(const Setting& setting) {
  const std::vector<CaseRow> rows = {
      {"seed-0", "", "--seed 0"}, {"seed-0-again", "", "--seed 0"}, {"seed-1", "", "--seed 1"}};
  return cases_of(setting, base_workload(setting), rows);
}

/// The number of different runs: losses of all steps and final weights, over every start of the
/// cases.
std::size_t different_runs(const std::vector<const Measurement*>& cases) {
  std::set<std::pair<std::vector<double>, std::string>> runs;
  for (const Measurement* measured : cases) {
    for (const Start& start : measured->starts()) {
      runs.emplace(start.ranks.front().loss, start.weights_hash);
    }
  }
  return runs.size();
}

Findings reproducibility_findings(const Results& results) {
  const Measurement &a = results.at("seed-0"), &again = results.at("seed-0-again");
  const Measurement& other = results.at("seed-1");
  const std::size_t same_seed = different_runs({&a, &again});
  const std::size_t starts = a.starts().size() + again.starts().size();
  const bool other_differs =
      different_runs({&a, &again, &other}) == same_seed + different_runs({&other});
  FindingTable table{.title = "Losses and weights",
                     .columns = {"case", "last loss", "hash of the weights"}};
  for (const Measurement* measured : {&a, &again, &other}) {
    for (const Start& start : measured->starts()) {
      table.rows.push_back({measured->what().key,
                            fmt::format("{}", start.ranks.front().loss.back()),
                            start.weights_hash});
    }
  }
  return {
      .untimed = {{"same-seed",
                   same_seed == 1
                       ? fmt::format("The same seed repeats to the bit: {} runs, every loss of {} "
                                     "steps and all weights equal.",
                                     starts, a.starts().front().ranks.front().loss.size())
                       : fmt::format("The same seed does not repeat: {} runs came to {} different "
                                     "results.",
                                     starts, same_seed)},
                  {"other-seed",
                   other_differs
                       ? "Another seed gives other losses and weights."
                       : "Another seed gives the same results, so the seed has no effect."}},
      .tables = {table}};
}

}  // namespace

Experiment profile_experiment() {
  return {"profile",
          "Where the time of a step goes",
          "Which ops are longest, how does backward compare with forward, does a layer stand "
          "out, and what does a clock show that does not wait for the device?",
          profile_cases,
          profile_findings,
          "longest backward layers roof clock most most-why counts backward-why table region-table "
          "plot roof-plot"};
}

Experiment warmup_experiment() {
  return {
      "warmup",     "The first steps", "How do the first steps differ from the others, and why?",
      warmup_cases, warmup_findings,   "first-step first-step-why length table plot"};
}

Experiment reproducibility_experiment() {
  return {"reproducibility",
          "Reproducibility",
          "Does the same seed repeat to the bit, and does another one differ?",
          reproducibility_cases,
          reproducibility_findings,
          "same-seed other-seed table",
          false};
}

}  // namespace barestep
