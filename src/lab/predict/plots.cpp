#include "lab/predict/plots.h"

namespace barestep {

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
