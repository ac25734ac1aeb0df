#include "lab/study/roofline.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

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
            .name = "roof-plot",
            .x_label = "flops a byte",
            .y_label = "GFLOP/s",
            .log_x = true,
            .log_y = true,
            .series = {roof}};
  for (auto& [op, series] : by_op) plot.series.push_back(std::move(series));
  return plot;
}

}  // namespace barestep
