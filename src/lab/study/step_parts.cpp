#include "lab/study/step_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "core/index.h"
#include "lab/predict/workload.h"
#include "profiler/account.h"

namespace barestep {
namespace {

/// The keys of the account's parts that `takes` selects, each once.
std::vector<std::string_view> keys_of_parts(bool (*takes)(const PartTraits& part)) {
  std::vector<std::string_view> keys;
  for (const PartTraits& part : kAccountParts) {
    if (!takes(part) || part.key.empty()) continue;
    if (keys.empty() || keys.back() != part.key) keys.push_back(part.key);
  }
  return keys;
}

const PartTraits& part_with_key(std::string_view phase) {
  const auto* const found = std::ranges::find(kAccountParts, phase, &PartTraits::key);
  BARESTEP_REQUIRE(found != std::end(kAccountParts), "a part of the account");
  return *found;
}

/// One bar: the account of a rank of a case.
struct AccountBar {
  const Measurement* of;
  int rank;
  std::string label;
};

Plot bars_plot(const std::vector<AccountBar>& bars) {
  Plot plot{
      .title = "Where the time of a step goes", .name = "phases-plot", .y_label = "ms a step"};
  for (const AccountBar& bar : bars) plot.categories.push_back(bar.label);
  for (const std::string_view phase : account_phases()) {
    PlotSeries series{.name = std::string(part_with_key(phase).plot_name())};
    double max = 0;
    for (std::size_t i = 0; i < bars.size(); ++i) {
      const AccountBar& bar = bars[i];
      const double phase_s = std::max(0.0, bar.of->phase_s(phase, bar.rank));
      max = std::max(max, phase_s / bar.of->mean_s().median);
      series.points.push_back(plot_point(static_cast<double>(i), 1e3 * phase_s));
    }
    constexpr double kNothing = 1e-4;
    if (max > kNothing) plot.series.push_back(std::move(series));
  }
  return plot;
}

/// For a case whose mean and median step differ; empty for others.
std::string bursts_text(const Measurement& measured) {
  constexpr double kApart = 0.05;
  const double ratio = measured.mean_s().median / measured.step_s().median;
  if (std::abs(ratio - 1) <= kApart) return "";
  return fmt::format("The mean step of {} takes {}, its median step {}: {}.", measured.what().key,
                     time_text(measured.mean_s().median), time_text(measured.step_s().median),
                     ratio < 1 ? "some steps are much shorter"
                               : fmt::format("the longest tenth of its steps takes {} of the time",
                                             percent_text(measured.longest_tenth())));
}

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

std::span<const std::string_view> account_phases() {
  static const auto phases = keys_of_parts([](const PartTraits&) { return true; });
  return phases;
}

std::span<const std::string_view> computing_phases() {
  static const auto phases = keys_of_parts([](const PartTraits& part) { return part.computes; });
  return phases;
}

std::span<const std::string_view> device_0_phases() {
  static constexpr std::array<std::string_view, 3> kPhases = {"loss", "optimizer", "communication"};
  return kPhases;
}

std::string phase_words(std::string_view phase) {
  return std::string(part_with_key(phase).words);
}

Plot account_plot(const std::vector<Measurement>& cases, const std::vector<std::string>& labels) {
  std::vector<AccountBar> bars;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string beyond = beyond_text(cases[i]);
    bars.push_back({&cases[i], 0, labels.at(i) + (beyond.empty() ? "" : ", " + beyond)});
  }
  return bars_plot(bars);
}

Plot ranks_plot(const std::vector<Measurement>& cases, const std::vector<std::string>& labels) {
  std::vector<AccountBar> bars;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (int rank = 0; rank < cases[i].ranks(); ++rank) {
      bars.push_back({&cases[i], rank, fmt::format("{}: rank {}", labels.at(i), rank)});
    }
  }
  return bars_plot(bars);
}

Estimate share_of(const Measurement& measured, std::string_view phase) {
  return share_of(measured, std::span(&phase, 1));
}

Estimate share_of(const Measurement& measured, std::span<const std::string_view> phases) {
  return ratio_by_round(measured.phases_s_by_start(phases), measured.mean_s_by_start());
}

LargestPart largest_phase(const Measurement& measured) {
  std::vector<PartSeries> parts;
  for (const std::string_view phase : account_phases()) {
    parts.push_back({phase_words(phase), measured.phase_s_by_start(phase)});
  }
  return largest_of(parts, measured.mean_s_by_start());
}

std::string bursts_of_cases(const std::vector<Measurement>& cases) {
  std::string first;
  std::vector<std::string> others;
  for (const Measurement& measured : cases) {
    std::string sentence = bursts_text(measured);
    if (sentence.empty()) continue;
    if (first.empty()) {
      first = std::move(sentence);
    } else {
      others.push_back(measured.what().key);
    }
  }
  return others.empty() ? first
                        : fmt::format("{} Means and medians also differ by more than 5 % in {}.",
                                      first, list_text(others));
}

std::vector<RooflinePoint> roofline_points(const Measurement& measured, const MachineCard& card) {
  const WorkloadPrograms programs(measured.workload());
  std::vector<RooflinePoint> points;
  for (const OpTime& op : measured.ops()) {
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
