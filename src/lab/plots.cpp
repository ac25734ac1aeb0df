#include "lab/plots.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "core/index.h"
#include "lab/findings.h"
#include "lab/workload.h"
#include "profiler/account.h"

namespace barestep {
namespace {

double roof_at(const MachineCard& card, double flops_per_byte) {
  return std::min(card.flops_per_s, card.memory_bytes_per_s * flops_per_byte);
}

/// The work of all nodes of a program that an op's time covers.
Cost cost_of_op(const Program& program, const OpTime& op) {
  Cost cost;
  for (const Node& node : program.nodes()) {
    if (label_of(node.op) == op.name && name_of(node.phase) == op.phase && node.block == op.block) {
      cost += cost_of(node.op);
    }
  }
  return cost;
}

/// When the last of a node's dependencies is done.
double ready_s(const Node& node, const SimulatedStep& step) {
  double ready = 0;
  for (const Wait& wait : node.waits) {
    if (wait.steps_back > 0) continue;
    ready = std::max(ready, at(step.spans, wait.node).end_s);
  }
  return ready;
}

}  // namespace

std::vector<RooflinePoint> roofline_points(const Measurement& each, const MachineCard& card) {
  const WorkloadPrograms programs(each.workload());
  std::vector<RooflinePoint> points;
  for (const OpTime& op : each.ops()) {
    const Cost cost = cost_of_op(programs.step(), op);
    if (cost.flops == 0 || cost.bytes == 0 || op.seconds <= 0) continue;
    RooflinePoint point{
        .op = op.name,
        .flops_per_byte = static_cast<double>(cost.flops) / static_cast<double>(cost.bytes),
        .flops_per_s = static_cast<double>(cost.flops) / op.seconds};
    point.share_of_roof = point.flops_per_s / roof_at(card, point.flops_per_byte);
    points.push_back(std::move(point));
  }
  return points;
}

Plot roofline_plot(const std::vector<RooflinePoint>& points, const MachineCard& card) {
  std::map<std::string, PlotSeries> by_op;
  const double ridge = card.flops_per_s / card.memory_bytes_per_s;
  double min = ridge, max = ridge;
  for (const RooflinePoint& point : points) {
    PlotSeries& series = by_op[point.op];
    series.name = point.op;
    series.style = SeriesStyle::kMarks;
    series.points.push_back(plot_point(point.flops_per_byte, 1e-9 * point.flops_per_s));
    min = std::min(min, point.flops_per_byte);
    max = std::max(max, point.flops_per_byte);
  }
  PlotSeries roof{.name = "roof, measured here", .style = SeriesStyle::kLine};
  for (const double x : {min / 2, ridge, 2 * max}) {
    roof.points.push_back(plot_point(x, 1e-9 * roof_at(card, x)));
  }
  Plot plot{.title = "Roofline of the ops of a step",
            .x_label = "flops a byte",
            .y_label = "GFLOP/s",
            .log_x = true,
            .log_y = true,
            .series = {roof}};
  for (auto& [op, series] : by_op) plot.series.push_back(std::move(series));
  return plot;
}

Plot timeline_plot(const Workload& workload, const SimulatedStep& step, std::string title) {
  const WorkloadPrograms programs(workload);
  Plot plot{.title = std::move(title),
            .x_label = "ms since the step began",
            .is_timeline = true,
            .categories = {"computing"}};
  std::map<Phase, PlotSeries> phases;
  PlotSeries waits{.name = "ready, waits its turn"}, messages{.name = "communication"};
  for (std::size_t i = 0; i < step.spans.size(); ++i) {
    const Node& node = programs.step().nodes()[i];
    const NodeSpan& span = step.spans[i];
    if (node.phase == Phase::kData) continue;
    if (node.lane == Lane::kCompute) {
      phases[node.phase].spans.push_back({0, 1e3 * span.begin_s, 1e3 * span.end_s});
    } else if (const auto* collective = std::get_if<Collective>(&node.op)) {
      const std::size_t row = plot.categories.size();
      plot.categories.push_back(name_of(*collective));
      waits.spans.push_back({row, 1e3 * ready_s(node, step), 1e3 * span.begin_s});
      messages.spans.push_back({row, 1e3 * span.begin_s, 1e3 * span.end_s});
    }
  }
  for (auto& [phase, series] : phases) {
    series.name = std::string(traits_of(part_for(phase)).plot_name());
    plot.series.push_back(std::move(series));
  }
  plot.series.push_back(std::move(waits));
  plot.series.push_back(std::move(messages));
  return plot;
}

Plot memory_plot(std::string title, const std::vector<NamedMemory>& devices) {
  Plot plot{.title = std::move(title), .y_label = "MiB"};
  for (const auto& [name, memory] : devices) plot.categories.push_back(name);
  for (const Category category : kValuesOf<Category>) {
    PlotSeries series{.name = std::string(name_of(category))};
    double sum = 0;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const double mib = static_cast<double>(devices[i].second.by_category[category]) / (1 << 20);
      sum += mib;
      series.points.push_back(plot_point(static_cast<double>(i), mib));
    }
    if (sum > 0) plot.series.push_back(std::move(series));
  }
  return plot;
}

}  // namespace barestep
