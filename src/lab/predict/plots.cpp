#include "lab/predict/plots.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "core/index.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"
#include "profiler/account.h"

namespace barestep {
namespace {

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

Plot timeline_plot(const Workload& workload, const SimulatedStep& step, std::string title) {
  const WorkloadPrograms programs(workload);
  Plot plot{.title = std::move(title),
            .name = "timeline-plot",
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
  Plot plot{.title = std::move(title), .name = "memory-plot", .y_label = "MiB"};
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
