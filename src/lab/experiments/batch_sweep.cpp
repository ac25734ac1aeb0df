// Step time and throughput against the batch size.
#include <fmt/format.h>

#include <cmath>

#include "lab/experiments/all.h"
#include "lab/findings.h"

namespace barestep {
namespace {

/// A further doubling that brings less is saturation.
constexpr double kSaturatedGain = 1.1;
/// Below this share of the smallest step, the part that does not grow with the batch is no matter.
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

std::string growth_sentence(const Results& results, const Line& line) {
  const Measurement& first = results.cases.front();
  const Measurement& last = results.cases.back();
  const double times = last.step_s().median / first.step_s().median;
  const double batches = static_cast<double>(last.workload().batch_size()) /
                         static_cast<double>(first.workload().batch_size());
  const std::string growth = fmt::format(
      "From batch {} to {} ({:g}x) a step takes {:.2f}x as long: ", first.workload().batch_size(),
      last.workload().batch_size(), batches, times);
  const double fixed = line.intercept / first.step_s().median;
  if (std::abs(fixed) < kFixedShare) {
    return growth + "the step time grows in proportion to the batch.";
  }
  if (fixed < 0) return growth + "the step time grows faster than the batch.";
  return growth +
         fmt::format(
             "growth is not proportional, since {} of each step do not depend on the batch "
             "(line through all sizes, R2 = {:.3f}).",
             time_text(line.intercept), line.r_squared);
}

std::string saturation_sentence(const Results& results) {
  const auto& cases = results.cases;
  for (std::size_t i = 0; i + 1 < cases.size(); ++i) {
    const Estimate gain = ratio(cases[i + 1].samples_per_s(), cases[i].samples_per_s());
    if (gain.median < kSaturatedGain) {
      return fmt::format(
          "Throughput saturates at batch {}: doubling it brings {} the samples per "
          "second ({}).",
          cases[i].workload().batch_size(), factor_text(gain),
          number_text(cases[i + 1].samples_per_s().median));
    }
  }
  const Estimate gain =
      ratio(cases.back().samples_per_s(), cases[cases.size() - 2].samples_per_s());
  return fmt::format(
      "Throughput does not saturate up to batch {}: the last doubling still brings "
      "{} the samples per second.",
      cases.back().workload().batch_size(), factor_text(gain));
}

Findings conclude_batch_sweep(const Results& results) {
  std::vector<double> batches, seconds;
  FindingTable table{.title = "Batch size, step time and throughput",
                     .columns = {"batch size", "step time", "samples/s", "time per sample"}};
  PlotSeries throughput{.name = "measured"}, times{.name = "measured"};
  for (const Measurement& each : results.cases) {
    const auto batch = static_cast<double>(each.workload().batch_size());
    batches.push_back(batch);
    seconds.push_back(each.step_s().median);
    table.rows.push_back({number_text(batch), time_text(each.step_s()),
                          number_text(each.samples_per_s().median),
                          time_text(each.step_s().median / batch)});
    throughput.points.push_back(plot_point(batch, each.samples_per_s()));
    times.points.push_back(plot_point(batch, each.step_s(), 1e3));
  }
  const Line line = fit_line(batches, seconds);
  PlotSeries fitted{.name = "fitted line", .style = SeriesStyle::kDashed};
  for (const double batch : batches) {
    fitted.points.push_back(plot_point(batch, 1e3 * (line.intercept + line.slope * batch)));
  }
  return {.sentences = {growth_sentence(results, line), saturation_sentence(results)},
          .tables = {table},
          .plots = {{.title = "Throughput against batch size",
                     .x_label = "batch size",
                     .y_label = "samples/s",
                     .log_x = true,
                     .series = {throughput}},
                    {.title = "Step time against batch size",
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
          .conclude = conclude_batch_sweep};
}

}  // namespace barestep
