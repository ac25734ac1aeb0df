#include "lab/predict/explorer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "core/checker.h"
#include "core/error.h"
#include "core/index.h"
#include "core/json_document.h"
#include "core/printer.h"
#include "core/units.h"
#include "lab/predict/asked_run.h"
#include "lab/predict/machine_card.h"
#include "lab/predict/plots.h"
#include "lab/predict/prediction.h"
#include "lab/predict/simulator.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"
#include "lab/report/samples.h"
#include "lab/report/svg.h"
#include "profiler/account.h"

namespace barestep {
namespace {

using Answer = nlohmann::ordered_json;

constexpr int kMaxExploredRanks = 1024;

Run run_from(const JsonValue& options) {
  GivenOptions given;
  for (const auto& [name, value] : options.members()) {
    const std::string text = value.text();
    if (text != "false") given.emplace(name, text);
  }
  return asked_run(given);
}

/// A page answers at once: this many layers, over all micro-batches and devices, take some 0.1 s.
constexpr std::int64_t kMaxLayers = 1024;

void require_small(const Run& run) {
  const ParallelConfig& parallel = run.config.parallel;
  // These have programs of their own.
  const bool all_differ =
      run.scheme() == SchemeKind::kDataParallel || parallel.scheme == SchemeKind::kServer;
  std::int64_t layers = 1;
  bool is_small = true;
  for (const std::int64_t factor :
       {run.depth(), run.config.training.accumulate, parallel.pipeline, micro_batches_of(parallel),
        all_differ ? std::int64_t{run.ranks} : std::int64_t{1}}) {
    is_small = is_small && factor <= kMaxLayers / layers;
    if (is_small) layers *= factor;
  }
  if (is_small) return;
  fail(ExitCode::kConfiguration,
       {.what = "--depth",
        .value = std::to_string(run.depth()),
        .why = fmt::format("with its micro-batches and devices, a step has more than {} layers",
                           kMaxLayers),
        .remedy = "use smaller numbers here, or mlp_lab predict"});
}

// The account.

Plot account_plot(const SimulatedStep& step) {
  Plot plot{.title = fmt::format("Simulated: a step takes {}", simulated_time(step.step_s)),
            .x_label = "",
            .y_label = "ms",
            .categories = {"step"}};
  for (const Part part : kValuesOf<Part>) {
    if (step.account[part] <= 0) continue;
    plot.series.push_back({.name = std::string(traits_of(part).plot_name()),
                           .points = {plot_point(0, 1e3 * step.account[part])}});
  }
  return plot;
}

Answer answer_on_account(const SimulatedStep& step) {
  Answer parts = Answer::array();
  for (const Part part : kValuesOf<Part>) {
    const double seconds = step.account[part];
    if (seconds <= 0) continue;
    parts.push_back({{"part", traits_of(part).plot_name()},
                     {"seconds", seconds},
                     {"time", simulated_time(seconds)},
                     {"share", simulated_percent(seconds / step.step_s)}});
  }
  return parts;
}

// Speed-up over ranks.

/// One rank, powers of two, and what is asked for. If that is one rank, no more: nobody has checked
/// that several could run it.
/// `asked_s` is the time of a step of those that are asked for.
std::vector<PredictedRate> explored_rates(const Run& asked, const MachineCard& card,
                                          int asked_ranks, double asked_s) {
  constexpr int kMaxShown = 8;
  std::vector<int> counts = {1};
  const int max = asked_ranks == 1 ? 1 : std::max(kMaxShown, asked_ranks);
  for (int ranks = 2; ranks <= max; ranks *= 2) {
    if (ranks != asked_ranks && can_run(asked, card, ranks)) counts.push_back(ranks);
  }
  if (asked_ranks > 1) counts.push_back(asked_ranks);
  std::ranges::sort(counts);
  std::vector<PredictedRate> rates;
  for (const int ranks : counts) {
    const Run run = run_on(asked, card, ranks);
    const double step_s = ranks == asked_ranks ? asked_s : predicted_run(run, card).step_s;
    rates.push_back({ranks, static_cast<double>(run.step_samples()) / step_s, step_s});
  }
  return rates;
}

std::optional<double> explored_serial_share(const std::vector<PredictedRate>& rates) {
  std::vector<SpeedUp> speed_ups;
  for (const PredictedRate& each : rates) {
    if (each.ranks == 1) continue;
    speed_ups.push_back({each.ranks, each.samples_per_s / rates.front().samples_per_s});
  }
  if (speed_ups.empty()) return std::nullopt;
  return std::clamp(serial_fraction(speed_ups), 0.0, 1.0);
}

Answer answer_on_rates(const std::vector<PredictedRate>& rates) {
  Answer all = Answer::array();
  for (const PredictedRate& each : rates) {
    const double speed_up = each.samples_per_s / rates.front().samples_per_s;
    all.push_back({{"ranks", each.ranks},
                   {"step_s", each.step_s},
                   {"samples_per_s", each.samples_per_s},
                   {"speed_up", speed_up},
                   {"time", simulated_time(each.step_s)},
                   {"rate", simulated_number(each.samples_per_s)},
                   {"factor", simulated_factor(speed_up)}});
  }
  return all;
}

Plot speed_up_plot(const Run& asked, const std::vector<PredictedRate>& rates) {
  PlotSeries simulated{.name = "simulated"};
  PlotSeries ideal{.name = "ideal", .style = SeriesStyle::kDashed};
  const std::optional<double> serial = explored_serial_share(rates);
  PlotSeries amdahl{
      .name = fmt::format("Amdahl's law, serial share {}", percent_text(serial.value_or(0))),
      .style = SeriesStyle::kLine};
  for (const PredictedRate& each : rates) {
    simulated.points.push_back(
        plot_point(each.ranks, each.samples_per_s / rates.front().samples_per_s));
    ideal.points.push_back(plot_point(each.ranks, each.ranks));
    if (serial) {
      amdahl.points.push_back(plot_point(each.ranks, amdahl_speed_up(*serial, each.ranks)));
    }
  }
  Plot plot{.title = "Simulated speed-up",
            .x_label = noun_for(2, noun_of(asked)),
            .y_label = "speed-up",
            .log_x = true,
            .series = {std::move(ideal), std::move(simulated)}};
  if (serial) plot.series.push_back(std::move(amdahl));
  return plot;
}

// Memory.

Answer answer_on_memory(const std::vector<DeviceMemory>& devices) {
  Answer all = Answer::array();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    Answer categories = Answer::array();
    for (const Category category : kValuesOf<Category>) {
      const std::int64_t bytes = devices[i].by_category[category];
      if (bytes == 0) continue;
      categories.push_back(
          {{"category", name_of(category)}, {"bytes", bytes}, {"size", human_bytes(bytes)}});
    }
    all.push_back({{"device", i}, {"bytes", devices[i].bytes}, {"categories", categories}});
  }
  return all;
}

Plot memory_plot(const Run& asked, const std::vector<DeviceMemory>& devices,
                 std::optional<std::int64_t> limit_bytes) {
  std::vector<NamedMemory> named;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    named.emplace_back(devices.size() == 1 ? fmt::format("each {}", noun_of(asked))
                                           : fmt::format("{} {}", noun_of(asked), i),
                       devices[i]);
  }
  Plot plot = memory_plot("Memory of the plan", named);
  if (limit_bytes) {
    plot.limit = {.name = "a device has " + human_bytes(*limit_bytes),
                  .value = static_cast<double>(*limit_bytes) / (1 << 20)};
  }
  return plot;
}

// Messages.

Answer answer_on_messages(const WorkloadPrograms& programs) {
  struct Messages {
    int ranks = 0;
    std::int64_t count = 0;
    Cost cost{};
  };
  std::map<std::pair<Axis, ExchangeKind>, Messages> all;
  const Mesh& mesh = programs.mesh();
  for (const Node& node : programs.step().nodes()) {
    const auto* collective = std::get_if<Collective>(&node.op);
    if (collective == nullptr) continue;
    const Axis axis = mesh.simplest(axis_of(*collective));
    const ExchangeKind kind = exchange_kind_of(*collective);
    Messages& messages = all[{axis, kind}];
    messages.ranks = kind == ExchangeKind::kSendReceive ? 2 : mesh.size_of(axis);
    ++messages.count;
    messages.cost += cost_of(node.op);
  }
  Answer rows = Answer::array();
  for (const auto& [which, messages] : all) {
    rows.push_back({{"axis", name_of(which.first)},
                    {"exchange", name_of(which.second)},
                    {"ranks", messages.ranks},
                    {"count", messages.count},
                    {"bytes", messages.cost.message_bytes},
                    {"size", human_bytes(messages.cost.message_bytes)}});
  }
  return rows;
}

// The timeline.

/// The ranks that differ: one of each stage, and beside a slow rank one that waits for it.
std::vector<int> shown_ranks(const Run& run) {
  if (!run.has_ranks()) return {0};
  const Mesh mesh = mesh_of(run);
  const std::optional<SlowRank>& slow = run.config.injected.slow_rank;
  const bool all_differ = run.config.parallel.scheme == SchemeKind::kServer;
  if (!slow || mesh.pipeline > 1 || all_differ) return ranks_to_simulate(run);
  const int late = static_cast<int>(slow->rank);
  return late == 0 ? std::vector{0, 1} : std::vector{0, late};
}

/// What each run of a lane waited for beyond the one before it; of several causes, the last.
std::map<std::size_t, std::string> waits_on(const Timeline& timeline, LaneId lane) {
  const RunPlan& plan = *timeline.at(0)->plan;
  std::map<std::size_t, std::string> waits;
  double waited_s = 0;
  std::string cause;
  visit_stretches(timeline, lane, [&](const CauseSpan& stretch) {
    if (!stretch.held_by) return;
    if (!stretch.is_own_work) {
      const Node& node = plan.program().node(plan.runs()[stretch.held_by->run].first);
      waited_s += stretch.seconds();
      cause = fmt::format("{}: {}{}", traits_of(stretch.part).words, label_of(node.op),
                          node.block.empty() ? "" : " of " + node.block);
      return;
    }
    if (waited_s > 0) {
      waits[stretch.held_by->run] = fmt::format("; waited {} for {}", time_text(waited_s), cause);
    }
    waited_s = 0;
  });
  return waits;
}

std::string note_of(const Node& node, const NodeSpan& span, double reached_s) {
  const Cost cost = cost_of(node.op);
  std::string note(label_of(node.op));
  if (!node.block.empty()) note += " of " + node.block;
  note += fmt::format(", {}: {}", name_of(node.phase), time_text(span.end_s - span.begin_s));
  if (cost.flops > 0) note += fmt::format(", {} flops", grouped(cost.flops));
  if (cost.message_bytes > 0) {
    note += fmt::format(", message of {}", human_bytes(cost.message_bytes));
  } else {
    note += fmt::format(", moves {}", human_bytes(cost.bytes));
  }
  const double late_s = span.begin_s - reached_s;
  return late_s > 0 ? note + fmt::format("; waited {} for other ranks", time_text(late_s)) : note;
}

/// Adds the rows of one program's lanes, and its nodes to the series of their parts.
void add_lanes(Plot& plot, std::map<Part, PlotSeries>& parts, const Program& program,
               const SimulatedStep& step, const std::string& place) {
  std::map<LaneId, std::size_t> rows;
  for (const Node& node : program.nodes()) {
    if (node.phase == Phase::kData) continue;
    for (const LaneId& lane : lanes_of(program, node)) rows.emplace(lane, 0);
  }
  const bool has_devices = rows.size() > 1 && rows.rbegin()->first.device > 0;
  for (auto& [lane, row] : rows) {
    row = plot.categories.size();
    const std::string device = has_devices ? fmt::format("device {}", lane.device) : place;
    plot.categories.push_back(fmt::format("{}, {}", device, name_of(lane.lane)));
  }
  const Timeline timeline = timeline_of(program, step);
  const StepTimeline& as_measured = *timeline.at(0);
  for (const auto& [lane, row] : rows) {
    const auto waits = waits_on(timeline, lane);
    for (const std::size_t run : as_measured.plan->runs_on(lane)) {
      const NodeId id = as_measured.plan->runs()[run].first;
      const Node& node = program.node(id);
      if (node.phase == Phase::kData) continue;
      const NodeSpan& span = at(step.spans, id);
      const bool computes =
          node.lane == Lane::kCompute && std::holds_alternative<DeviceOp>(node.op);
      const auto wait = waits.find(run);
      parts[computes ? part_for(node.phase) : Part::kExposedCommunication].spans.push_back(
          {row, 1e3 * span.begin_s, 1e3 * span.end_s,
           note_of(node, span, as_measured.spans[run].begin_s) +
               (wait == waits.end() ? "" : wait->second)});
    }
  }
}

/// `program` is the first rank's and `step` the run's.
Plot explored_timeline(const Run& run, const MachineCard& card, const Program& program,
                       const SimulatedStep& step) {
  Plot plot{.title = "Simulated: what runs when",
            .x_label = "ms since the step began",
            .is_timeline = true};
  const std::vector<int> ranks = shown_ranks(run);
  std::map<Part, PlotSeries> parts;
  if (ranks == ranks_to_simulate(run) && ranks == std::vector{0}) {
    add_lanes(plot, parts, program, step, run.ranks > 1 ? "each rank" : "rank 0");
  } else {
    const RankPrograms programs(run, ranks);
    const std::vector<SimulatedStep> steps = predicted_ranks(run, card, programs);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      add_lanes(plot, parts, programs.of(i).step(), steps[i], fmt::format("rank {}", ranks[i]));
    }
  }
  for (auto& [part, series] : parts) {
    series.name = part == Part::kExposedCommunication ? "communication"
                                                      : std::string(traits_of(part).plot_name());
    plot.series.push_back(std::move(series));
  }
  return plot;
}

/// Throws Error(kBug): a program that is not ordered is a mistake in barestep.
void require_ordered(const Program& program) {
  const std::vector<Violation> violations = check(program);
  BARESTEP_REQUIRE(violations.empty(), describe(program, violations.front()));
}

}  // namespace

std::string explore(std::string_view question) {
  const JsonDocument document(
      question,
      {.what = "question", .name = "", .remedy = "see src/lab/predict/explorer.h for its form"});
  const JsonValue asks = document.root();
  MachineCard card = card_from(asks.at("card"));
  const Run asked = run_from(asks.at("options"));
  const auto ranks = static_cast<int>(asks.at("ranks").whole(1, kMaxExploredRanks));
  std::optional<std::int64_t> memory_bytes;
  if (asks.has("memory")) {
    memory_bytes = parse_bytes("--memory", asks.at("memory").text());
    card.device_bytes = *memory_bytes;
  }
  require_prediction(asked, card, {ranks});
  const Run run = run_on(asked, card, ranks);
  require_small(run);
  document.require_known();
  const SimulatedStep step = predicted_run(run, card);
  const WorkloadPrograms programs(run);
  require_ordered(programs.step());
  const std::vector<PredictedRate> rates = explored_rates(asked, card, ranks, step.step_s);
  const std::vector<DeviceMemory> devices = planned_memory(programs);
  const std::optional<double> serial = explored_serial_share(rates);
  const std::string too_large = why_too_large(run, card);
  const double samples_per_s = static_cast<double>(run.step_samples()) / step.step_s;
  const Answer answer = {
      {"headline",
       fmt::format("Simulated: a step takes {}, {} samples/s. {}", simulated_time(step.step_s),
                   simulated_number(samples_per_s), kSimulationError)},
      {"command", command_line_of(Workload{run})},
      {"step_s", step.step_s},
      {"samples_per_s", samples_per_s},
      {"account", answer_on_account(step)},
      {"speed_ups", answer_on_rates(rates)},
      {"serial_share", serial ? Answer(*serial) : Answer()},
      {"memory", answer_on_memory(devices)},
      {"shortage", too_large.empty() ? "" : fmt::format("Does not fit: {}.", too_large)},
      {"messages", answer_on_messages(programs)},
      {"explain", explain(programs.step())},
      {"timeline_svg", svg_of(explored_timeline(run, card, programs.step(), step))},
      {"account_svg", svg_of(account_plot(step))},
      {"memory_svg", svg_of(memory_plot(asked, devices, memory_bytes))},
      {"speed_up_svg", svg_of(speed_up_plot(asked, rates))}};
  return answer.dump();
}

}  // namespace barestep
