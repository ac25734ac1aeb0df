// Step time and throughput against the batch size.
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <optional>

#include "lab/experiments/figures.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

/// Below this share of the smallest step, the part that does not grow with the batch is negligible.
constexpr double kFixedShare = 0.1;

std::vector<Case> batch_sweep_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int batch : {16, 32, 64, 128, 256, 512}) {
    if (setting.quick && (batch < 32 || batch > 128)) continue;
    Workload workload = base_workload(setting);
    workload.config.data.batch_size = batch;
    cases.push_back(new_case(setting, fmt::format("batch-{}", batch), workload));
  }
  return cases;
}

double batch_of(const Measurement& each) {
  return static_cast<double>(each.workload().batch_size());
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
  const std::string growth = fmt::format(
      "From batch {} to {} ({:g}x) a step takes {} as long: ", first.workload().batch_size(),
      last.workload().batch_size(), batch_of(last) / batch_of(first), factor_text(times));
  if (side_of(share, kFixedShare) == Side::kAbove) {
    return growth + fmt::format(
                        "growth is not proportional; {} of each step does not depend on the batch "
                        "(a line through all sizes, fitted round by round).",
                        time_text(fixed_s));
  }
  if (side_of(share, -kFixedShare) == Side::kBelow) {
    return growth + "the step time grows faster than the batch.";
  }
  if (side_of(share, kFixedShare) == Side::kBelow && side_of(share, -kFixedShare) == Side::kAbove) {
    return growth + "the step time grows in proportion to the batch.";
  }
  return growth + fmt::format(
                      "whether growth is proportional is unclear, since {} of the smallest step "
                      "may not depend on the batch.",
                      percent_text(share));
}

Findings conclude_batch_sweep(const Results& results) {
  std::vector<double> batches, seconds;
  FindingTable table{.title = "Batch size, step time and throughput",
                     .columns = {"batch size", "mean step", "samples/s", "time per sample"}};
  PlotSeries throughput{.name = "measured"}, times{.name = "measured"};
  std::vector<std::string> larger;
  for (const Measurement& each : results.cases) {
    const double batch = batch_of(each);
    batches.push_back(batch);
    seconds.push_back(each.mean_s().median);
    table.rows.push_back({std::to_string(each.workload().batch_size()), time_text(each.mean_s()),
                          number_text(each.samples_per_s().median),
                          time_text(estimate_of(each.sample_s_by_start()).median)});
    throughput.points.push_back(plot_point(batch, each.samples_per_s()));
    times.points.push_back(plot_point(batch, each.mean_s(), 1e3));
    if (batches.size() > 1) larger.push_back(each.what().key);
  }
  std::vector<const Measurement*> sweep;
  for (const Measurement& each : results.cases) sweep.push_back(&each);
  const Line line = fit_line(batches, seconds);
  PlotSeries fitted{.name = "fitted line", .style = SeriesStyle::kDashed};
  for (const double batch : batches) {
    fitted.points.push_back(plot_point(batch, 1e3 * (line.intercept + line.slope * batch)));
  }
  return {.sentences = {{"growth", growth_sentence(results)},
                        {"saturation", saturation_sentence(sweep)}},
          .comparisons = results.compare(results.cases.front().what().key, larger),
          .tables = {table},
          .plots = {{.title = "Throughput against batch size",
                     .x_label = "batch size",
                     .y_label = "samples/s",
                     .log_x = true,
                     .series = {throughput}},
                    {.title = "Step time against batch size",
                     .name = "times-plot",
                     .x_label = "batch size",
                     .y_label = "ms a step",
                     .series = {times, fitted}}}};
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
          .names = "growth saturation table plot times-plot"};
}

}  // namespace barestep
