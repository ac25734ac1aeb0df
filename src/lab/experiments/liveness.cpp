// Who is alive when: the memory that each part of a step needs, with and without recomputation and
// with an optimizer, gradients and parameters that ranks share. Calculated from programs and plans.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/plan.h"
#include "core/units.h"
#include "lab/experiments/all.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"
#include "profiler/memory_timeline.h"

namespace barestep {
namespace {

constexpr double kBytesOfMib = 1 << 20;

/// The parts of a step, as the nodes of its program follow each other.
enum class StepPart { kForward, kBackward, kUpdate };

/// A way to train the same model, and its memory over a step of the first device or rank.
struct Living {
  std::string name{};
  bool is_shared = false;  // by ranks
  MemoryTimeline timeline{};
  std::int64_t held_bytes = 0;               // also between steps
  std::array<std::int64_t, 3> peak_bytes{};  // by part
  std::string high_water{};

  [[nodiscard]] const MemoryPoint& highest() const { return timeline.points[timeline.highest]; }
  [[nodiscard]] std::int64_t peak(StepPart part) const {
    return peak_bytes.at(static_cast<std::size_t>(part));
  }
};

Living living_of(std::string name, const Workload& workload) {
  const WorkloadPrograms programs(workload);
  const Program& step = programs.steps().train().program;
  const MemoryPlan plan(programs.steps().buffers());
  Living living{.name = std::move(name),
                .is_shared = workload.trainer == TrainerKind::kDdp,
                .timeline = memory_timeline(step, plan, 0)};
  const MemoryPoint& first = living.timeline.points.front();
  living.held_bytes = first.total_bytes();
  for (const BufferId buffer : first.begins) living.held_bytes -= plan.buffer_bytes(buffer);
  StepPart part = StepPart::kForward;
  for (const MemoryPoint& point : living.timeline.points) {
    const Phase phase = step.node(point.node).phase;
    if (phase == Phase::kLoss) part = StepPart::kBackward;
    if (phase == Phase::kOptimizer) part = StepPart::kUpdate;
    std::int64_t& peak = living.peak_bytes.at(static_cast<std::size_t>(part));
    peak = std::max(peak, point.total_bytes());
  }
  living.high_water = high_water_text(step, living.timeline);
  return living;
}

std::vector<Living> living_of_all(const Setting& setting) {
  constexpr std::int64_t kMinLayers = 8;
  Setting deep = setting;
  deep.depth = std::max(setting.depth, kMinLayers);
  deep.recompute = 1;
  Workload alone = base_workload(deep);
  alone.config.training.update = Update::kSeparate;
  std::vector<Living> all = {living_of("one device", alone)};
  alone.config.training.recompute = std::lround(std::sqrt(static_cast<double>(deep.depth)));
  all.push_back(
      living_of(fmt::format("recomputed in {} segments", alone.config.training.recompute), alone));
  for (const RankScheme scheme :
       {RankScheme::kDdp, RankScheme::kZero1, RankScheme::kZero2, RankScheme::kZero3}) {
    Workload shared = ddp_workload(deep, compared_with_one(setting));
    shared.config.training.update = Update::kSeparate;
    shared.config.parallel.scheme = scheme;
    all.push_back(living_of(std::string(name_of(scheme)), shared));
  }
  return all;
}

FindingTable living_table(const std::vector<Living>& all) {
  FindingTable table{
      .title = "Memory in use by part of a step (calculated)",
      .columns = {"way to train", "after init, and between steps", "forward, at most",
                  "backward, at most", "update, at most", "the whole plan"}};
  for (const Living& each : all) {
    table.rows.push_back(
        {each.name, human_bytes(each.held_bytes), human_bytes(each.peak(StepPart::kForward)),
         human_bytes(each.peak(StepPart::kBackward)), human_bytes(each.peak(StepPart::kUpdate)),
         human_bytes(each.timeline.reserved_bytes)});
  }
  return table;
}

/// The bytes in use over the nodes of a step, a line for each way.
Plot living_plot(std::string title, const std::vector<Living>& all, bool is_shared) {
  Plot plot{.title = std::move(title), .x_label = "node of the step", .y_label = "MiB in use"};
  for (const Living& each : all) {
    if (each.is_shared != is_shared) continue;
    PlotSeries series{.name = each.name, .style = SeriesStyle::kLine};
    for (const MemoryPoint& point : each.timeline.points) {
      series.points.push_back(
          plot_point(point.node, static_cast<double>(point.total_bytes()) / kBytesOfMib));
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

std::string part_words(const Living& each) {
  const std::int64_t max = each.highest().total_bytes();
  if (each.peak(StepPart::kForward) == max) return "forward";
  return each.peak(StepPart::kBackward) == max ? "backward" : "the update";
}

/// What a way needs at most, instead of another.
std::string instead_fact(std::string_view what, const Living& each, const Living& other,
                         std::string_view why) {
  return fmt::format(
      "{} {} at most, in {}, instead of {}, in {}, and between steps {} instead of {} "
      "(calculated): {}.",
      what, human_bytes(each.highest().total_bytes()), part_words(each),
      human_bytes(other.highest().total_bytes()), part_words(other), human_bytes(each.held_bytes),
      human_bytes(other.held_bytes), why);
}

Findings conclude_liveness(const Results& results) {
  const Setting& setting = results.setting;
  const std::vector<Living> all = living_of_all(setting);
  const std::string ranks = several_words(compared_with_one(setting), "rank");
  const Living &alone = all[0], &recomputed = all[1], &ddp = all[2], &zero1 = all[3],
               &zero2 = all[4], &zero3 = all[5];
  std::vector<NamedMemory> peaks;
  for (const Living& each : all) {
    peaks.emplace_back(each.name, DeviceMemory{.bytes = each.highest().total_bytes(),
                                               .by_category = each.highest().in_use_bytes});
  }
  Findings findings{
      .facts = {"Alive at the peak on one device (calculated): " + alone.high_water,
                "Alive at the peak with recomputation (calculated): " + recomputed.high_water,
                instead_fact("Recomputation needs", recomputed, alone,
                             "forward drops the activations inside a segment, and backward "
                             "computes them again"),
                instead_fact("A rank of zero1 needs", zero1, ddp,
                             "each of " + ranks + " keeps its part of the optimizer's state"),
                instead_fact("A rank of zero2 needs", zero2, ddp,
                             "gradients too are kept by the rank that updates with them"),
                instead_fact("A rank of zero3 needs", zero3, ddp,
                             "parameters too, and each layer is gathered before it is read"),
                "Alive at the peak of a rank of zero3 (calculated): " + zero3.high_water},
      .tables = {living_table(all)},
      .plots = {living_plot("Memory in use over a step on one device (calculated)", all, false),
                living_plot("Memory in use over a step of a rank (calculated)", all, true),
                memory_plot("What is alive at the peak (calculated)", peaks)}};
  findings.facts.emplace_back(
      "The plan reserves all of it before the run and never moves it; what is in use is what a "
      "caching allocator, such as PyTorch's, would have had to find.");
  return findings;
}

}  // namespace

Experiment liveness_experiment() {
  return {.name = "liveness",
          .title = "Who is alive when",
          .question = "How much memory does each part of a step need, and what is in it?",
          .cases = [](const Setting&) { return std::vector<Case>{}; },
          .conclude = conclude_liveness};
}

}  // namespace barestep
