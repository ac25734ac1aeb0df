#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lab/experiments/all.h"

namespace barestep {

std::vector<int> rank_counts(const Setting& setting) {
  const int most = setting.on_gpu ? setting.units : std::max(4, setting.units);
  std::vector<int> counts;
  for (int ranks = 1; ranks <= std::min(most, 16); ranks *= 2) counts.push_back(ranks);
  return counts;
}

std::string ranks_key(int ranks) {
  return fmt::format("ranks-{}", ranks);
}

bool differ(const Estimate& a, const Estimate& b) {
  return a.high < b.low || b.high < a.low;
}

const std::vector<std::string>& account_phases() {
  static const std::vector<std::string> phases = {
      "data",   "injected",  "forward",      "loss", "backward",
      "reduce", "optimizer", "other_device", "host", "idle"};
  return phases;
}

std::string phase_words(const std::string& phase) {
  static const std::map<std::string, std::string> words = {{"data", "waiting for data"},
                                                           {"injected", "the injected delay"},
                                                           {"reduce", "exposed communication"},
                                                           {"optimizer", "the optimizer"},
                                                           {"loss", "the loss"},
                                                           {"idle", "idle gaps"},
                                                           {"other_device", "the other devices"},
                                                           {"host", "the host"}};
  const auto found = words.find(phase);
  return found == words.end() ? phase : found->second;
}

Plot account_plot(const std::vector<Measurement>& cases, const std::vector<std::string>& labels) {
  Plot plot{.title = "Where the time of a step goes",
            .x_label = "",
            .y_label = "ms a step",
            .categories = labels};
  for (const std::string& phase : account_phases()) {
    PlotSeries series{.name = phase_words(phase)};
    double most = 0;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const double ms = 1e3 * std::max(0.0, cases[i].phase_s(phase));
      most = std::max(most, ms / (1e3 * cases[i].step_s().median));
      series.points.push_back(plot_point(static_cast<double>(i), ms));
    }
    if (most > 0.005) plot.series.push_back(std::move(series));
  }
  return plot;
}

PhaseChange largest_change(const Measurement& a, const Measurement& b) {
  PhaseChange change;
  for (const std::string& phase : account_phases()) {
    const double seconds = b.phase_s(phase) - a.phase_s(phase);
    if (change.phase.empty() || std::abs(seconds) > std::abs(change.seconds)) {
      change = {phase, seconds};
    }
  }
  return change;
}

}  // namespace barestep
