#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "lab/experiments/all.h"

namespace barestep {

std::vector<int> rank_counts(const Setting& setting) {
  if (!setting.ranks.empty()) return setting.ranks;
  const int most = setting.on_gpu ? setting.units : std::max(4, setting.units);
  std::vector<int> counts;
  for (int ranks = 1; ranks <= std::min(most, 16); ranks *= 2) counts.push_back(ranks);
  return counts;
}

std::string ranks_key(int ranks) {
  return fmt::format("ranks-{}", ranks);
}

std::vector<std::string> keys_within_cores(const Results& results) {
  std::vector<std::string> within, all;
  for (const Measurement& each : results.cases) {
    all.push_back(each.what().key);
    if (!each.what().beyond_cores) within.push_back(each.what().key);
  }
  return within.size() > 1 ? within : all;
}

std::span<const std::string_view> account_phases() {
  static constexpr std::array<std::string_view, 10> kPhases = {
      "data",   "injected",  "forward",      "loss", "backward",
      "reduce", "optimizer", "other_device", "host", "idle"};
  return kPhases;
}

std::span<const std::string_view> computing_phases() {
  static constexpr std::array<std::string_view, 4> kPhases = {"forward", "loss", "backward",
                                                              "optimizer"};
  return kPhases;
}

std::string phase_words(std::string_view phase) {
  static const std::map<std::string_view, std::string> words = {
      {"data", "waiting for data"},
      {"injected", "the injected delay"},
      {"reduce", "exposed communication"},
      {"optimizer", "the optimizer"},
      {"loss", "the loss"},
      {"idle", "idle gaps"},
      {"other_device", "the other devices"},
      {"host", "the host"}};
  const auto found = words.find(phase);
  return found == words.end() ? std::string(phase) : found->second;
}

Plot account_plot(const std::vector<Measurement>& cases, const std::vector<std::string>& labels) {
  Plot plot{.title = "Where the time of a step goes",
            .x_label = "",
            .y_label = "ms a step",
            .categories = labels};
  // Medians of parts do not add up to the median of the whole; their shares do.
  std::vector<double> sums(cases.size());
  for (const std::string_view phase : account_phases()) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      sums[i] += std::max(0.0, cases[i].phase_s(phase));
    }
  }
  for (const std::string_view phase : account_phases()) {
    std::string name = phase_words(phase);
    if (name.starts_with("the ")) name.erase(0, 4);
    PlotSeries series{.name = std::move(name)};
    double most = 0;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const double share = std::max(0.0, cases[i].phase_s(phase)) / std::max(sums[i], 1e-12);
      most = std::max(most, share);
      series.points.push_back(
          plot_point(static_cast<double>(i), 1e3 * share * cases[i].step_s().median));
    }
    constexpr double kNothing = 1e-4;
    if (most > kNothing) plot.series.push_back(std::move(series));
  }
  return plot;
}

Estimate share_of(const Measurement& each, std::string_view phase, int rank) {
  return estimate_of(each.share_by_start(std::span(&phase, 1), rank));
}

LargestPart largest_phase(const Measurement& each) {
  std::vector<PartSeries> parts;
  for (const std::string_view& phase : account_phases()) {
    parts.push_back({phase_words(phase), each.share_by_start(std::span(&phase, 1))});
  }
  return largest_of(parts);
}

std::string fastest_sentence(const Fastest& fastest, const std::vector<std::string>& names) {
  std::vector<std::string> ties;
  for (const std::size_t place : fastest.ties) ties.push_back(names.at(place));
  return fmt::format("Fastest: {}{}.", list_text(ties),
                     fastest.is_alone() ? "" : ", which cannot be told apart");
}

std::vector<Series> steps_of(const Results& results, std::span<const std::string> keys) {
  std::vector<Series> all;
  for (const std::string& key : keys) all.push_back(results.steps_of(key));
  return all;
}

void keep(Findings& findings, std::span<const Comparison> comparisons) {
  findings.comparisons.insert(findings.comparisons.end(), comparisons.begin(), comparisons.end());
}

}  // namespace barestep
