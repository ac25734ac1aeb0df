#include "lab/predict/explorer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
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
constexpr double kLongestGuessMs = 1e9;

GivenOptions given_in(const JsonValue& options) {
  GivenOptions given;
  for (const auto& [name, value] : options.members()) {
    const std::string text = value.text();
    if (text != "false") given.emplace(name, text);
  }
  return given;
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
       {"--depth", std::to_string(run.depth()),
        fmt::format("with its micro-batches and devices, a step has more than {} layers",
                    kMaxLayers),
        "use smaller numbers here, or mlp_lab predict"});
}

// The account.

using NamedStep = std::pair<std::string, const SimulatedStep*>;

/// A bar for each step.
Plot account_plot(std::string title, const std::vector<NamedStep>& steps) {
  Plot plot{.title = std::move(title), .x_label = "", .y_label = "ms"};
  for (const auto& [name, step] : steps) plot.categories.push_back(name);
  for (const Part part : kValuesOf<Part>) {
    PlotSeries series{.name = std::string(traits_of(part).plot_name())};
    double sum_s = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const double seconds = steps[i].second->account[part];
      sum_s += seconds;
      series.points.push_back(plot_point(static_cast<double>(i), 1e3 * seconds));
    }
    if (sum_s > 0) plot.series.push_back(std::move(series));
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
/// that several could run it. `one` and `step` are the steps of one rank and of those asked for.
std::vector<PredictedRate> explored_rates(const Run& asked, const MachineCard& card,
                                          int asked_ranks, const SimulatedStep& one,
                                          const SimulatedStep& step) {
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
    const double step_s = ranks == 1             ? one.step_s
                          : ranks == asked_ranks ? step.step_s
                                                 : predicted_run(run, card).step_s;
    rates.push_back({ranks, static_cast<double>(run.step_samples()) / step_s, step_s});
  }
  return rates;
}

/// Nothing if no number of ranks is faster than one: there is no share to fit then.
std::optional<double> explored_serial_share(const std::vector<PredictedRate>& rates) {
  std::vector<SpeedUp> speed_ups;
  bool any_is_faster = false;
  for (const PredictedRate& rate : rates) {
    if (rate.ranks == 1) continue;
    speed_ups.push_back({rate.ranks, rate.samples_per_s / rates.front().samples_per_s});
    any_is_faster = any_is_faster || speed_ups.back().factor > 1;
  }
  if (!any_is_faster) return std::nullopt;
  const double share = serial_fraction(speed_ups);
  if (share >= 1) return std::nullopt;
  return std::max(share, 0.0);
}

Answer answer_on_rates(const std::vector<PredictedRate>& rates) {
  Answer all = Answer::array();
  for (const PredictedRate& rate : rates) {
    const double speed_up = rate.samples_per_s / rates.front().samples_per_s;
    all.push_back({{"ranks", rate.ranks},
                   {"step_s", rate.step_s},
                   {"samples_per_s", rate.samples_per_s},
                   {"speed_up", speed_up},
                   {"time", simulated_time(rate.step_s)},
                   {"rate", simulated_number(rate.samples_per_s)},
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
  for (const PredictedRate& rate : rates) {
    simulated.points.push_back(
        plot_point(rate.ranks, rate.samples_per_s / rates.front().samples_per_s));
    ideal.points.push_back(plot_point(rate.ranks, rate.ranks));
    if (serial) {
      amdahl.points.push_back(plot_point(rate.ranks, amdahl_speed_up(*serial, rate.ranks)));
    }
  }
  Plot plot{.title = "Simulated speed-up",
            .x_label = noun_for(2, noun_of(asked)),
            .y_label = "speed-up",
            .log_x = true,
            .log_y = true,
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
                          node.of_block());
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
  std::string note = fmt::format("{}{}, {}: {}", label_of(node.op), node.of_block(),
                                 name_of(node.phase), time_text(span.end_s - span.begin_s));
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

/// All that a question asks for, simulated.
struct AnsweredRun {
  MachineCard card{};
  Run asked{};
  Run run{};
  std::optional<std::int64_t> memory_bytes{};
  std::string predict{};  // the command
  SimulatedStep step{}, one{};
  std::unique_ptr<WorkloadPrograms> programs{};
  std::vector<DeviceMemory> devices{};
  std::string too_large{};

  [[nodiscard]] double samples_per_s() const {
    return static_cast<double>(run.step_samples()) / step.step_s;
  }
};

AnsweredRun answered_run(const JsonValue& asks) {
  const GivenOptions given = given_in(asks.at("options"));
  AnsweredRun found{.card = card_from(asks.at("card")), .asked = asked_run(given)};
  const auto ranks = static_cast<int>(asks.at("ranks").whole(1, kMaxExploredRanks));
  if (asks.has("memory")) {
    found.memory_bytes = parse_bytes("--memory", asks.at("memory").text());
    found.card.device_bytes = *found.memory_bytes;
  }
  found.predict = fmt::format("mlp_lab predict --machine {} --ranks {}{}",
                              asks.has("machine") ? asks.at("machine").text() : "card.json",
                              ranks == 1 ? "1" : fmt::format("1,{}", ranks), options_text(given));
  require_prediction(found.asked, found.card, {ranks});
  found.run = run_on(found.asked, found.card, ranks);
  require_small(found.run);
  found.step = predicted_run(found.run, found.card);
  found.one = ranks == 1 ? found.step : predicted_step(found.asked, found.card, 1);
  found.programs = std::make_unique<WorkloadPrograms>(found.run);
  require_ordered(found.programs->step());
  found.devices = planned_memory(*found.programs);
  found.too_large = why_too_large(found.run, found.card);
  return found;
}

/// "exposed communication takes 57 % of the step", what keeps ranks from their speed; empty if
/// nothing does.
std::string sharing_cost_of(const AnsweredRun& found) {
  return cost_of_sharing(run_on(found.asked, found.card, 1), found.one.account, found.run,
                         found.step);
}

/// "backward takes 40 % of the step"
std::string largest_part(const SimulatedStep& step) {
  const auto most =
      std::ranges::max(kValuesOf<Part>, {}, [&](Part part) { return step.account[part]; });
  return fmt::format("{} takes {} of the step", traits_of(most).words,
                     simulated_percent(step.account[most] / step.step_s));
}

std::string headline_of(const AnsweredRun& found) {
  const std::string time = simulated_time(found.step.step_s);
  if (!found.too_large.empty()) {
    return fmt::format("Does not fit: {}. With enough memory a step would take {} (simulated).",
                       found.too_large, time);
  }
  const std::string begin = fmt::format("Simulated: a step takes {}", time);
  if (found.run.ranks == 1) return fmt::format("{}; {}.", begin, largest_part(found.step));
  const Run one = run_on(found.asked, found.card, 1);
  const std::string who = counted(found.run.ranks, noun_of(found.asked));
  if (!why_too_large(one, found.card).empty()) {
    return fmt::format("{} on {}, and one has too little memory; {}.", begin, who,
                       largest_part(found.step));
  }
  const double one_rate = static_cast<double>(one.step_samples()) / found.one.step_s;
  const std::string cost = sharing_cost_of(found);
  return fmt::format("{}. {} are {} as fast as one{}.", begin, who,
                     simulated_factor(found.samples_per_s() / one_rate),
                     cost.empty() ? ", about as fast as they can be" : ": " + cost);
}

/// Three points within a tenth, none if it is more than three times too much or too little.
Answer answer_on_guess(const AnsweredRun& found, double guess_s) {
  struct Grade {
    double within;
    int points;
  };
  constexpr std::array kGrades = {Grade{1.1, 3}, Grade{1.5, 2}, Grade{3, 1}};
  const double factor = guess_s / found.step.step_s;
  const double off = std::max(factor, 1 / factor);
  const auto grade = std::ranges::find_if(kGrades, [&](Grade row) { return off <= row.within; });
  const int points = grade == kGrades.end() ? 0 : grade->points;
  const std::string how =
      points == kGrades.front().points
          ? "within a tenth"
          : fmt::format("{} too {}", simulated_factor(off), factor > 1 ? "much" : "little");
  return {{"points", points},
          {"of", kGrades.front().points},
          {"text", fmt::format("You guessed {}: {}, {} of {} points. A step takes {}, and {}.",
                               time_text(guess_s), how, points, kGrades.front().points,
                               simulated_time(found.step.step_s), largest_part(found.step))}};
}

std::int64_t message_bytes(const AnsweredRun& found) {
  std::int64_t bytes = 0;
  for (const Node& node : found.programs->step().nodes()) {
    if (std::holds_alternative<Collective>(node.op)) bytes += cost_of(node.op).message_bytes;
  }
  return bytes;
}

/// "+1.2 ms", or "same" if both have the same two digits.
std::string change_text(double before_s, double now_s) {
  if (simulated_time(before_s) == simulated_time(now_s)) return "same";
  return (now_s > before_s ? "+" : "-") + simulated_time(std::abs(now_s - before_s));
}

Answer answer_on_comparison(const AnsweredRun& before, const AnsweredRun& now) {
  Answer rows = Answer::array();
  const auto add = [&](std::string_view what, std::string pinned, std::string text,
                       std::string change) {
    rows.push_back({{"what", what},
                    {"pinned", std::move(pinned)},
                    {"now", std::move(text)},
                    {"change", std::move(change)}});
  };
  const auto add_time = [&](std::string_view what, double before_s, double now_s) {
    add(what, simulated_time(before_s), simulated_time(now_s), change_text(before_s, now_s));
  };
  const double gain = now.samples_per_s() / before.samples_per_s();
  add_time("a step", before.step.step_s, now.step.step_s);
  add("samples/s", simulated_number(before.samples_per_s()), simulated_number(now.samples_per_s()),
      simulated_factor(gain));
  for (const Part part : kValuesOf<Part>) {
    const double before_s = before.step.account[part], now_s = now.step.account[part];
    if (before_s > 0 || now_s > 0) add_time(traits_of(part).plot_name(), before_s, now_s);
  }
  const auto add_bytes = [&](std::string_view what, std::int64_t old, std::int64_t bytes) {
    add(what, human_bytes(old), human_bytes(bytes),
        old == bytes ? "same"
        : old == 0   ? "new"
                     : simulated_factor(static_cast<double>(bytes) / static_cast<double>(old)));
  };
  add_bytes("memory of a device", max_device_bytes(before.run), max_device_bytes(now.run));
  add_bytes("messages of a step", message_bytes(before), message_bytes(now));
  const Part most = std::ranges::max(kValuesOf<Part>, {}, [&](Part part) {
    return std::abs(now.step.account[part] - before.step.account[part]);
  });
  std::string text = fmt::format("Now {} as many samples/s as pinned", simulated_factor(gain));
  if (const double change_s = now.step.account[most] - before.step.account[most]; change_s != 0) {
    text += fmt::format("; of a step, {} changes most, by {}", traits_of(most).words,
                        change_text(before.step.account[most], now.step.account[most]));
  }
  return {{"text", text + "."},
          {"rows", rows},
          {"svg", svg_of(account_plot("Simulated: where the time of a step goes",
                                      {{"pinned", &before.step}, {"now", &now.step}}))}};
}

}  // namespace

std::string explore(std::string_view question) {
  const JsonDocument document(
      question,
      {.what = "question", .name = "", .remedy = "see src/lab/predict/explorer.h for its form"});
  const JsonValue asks = document.root();
  const AnsweredRun found = answered_run(asks);
  Answer guess, comparison;
  if (asks.has("guess_ms")) {
    guess = answer_on_guess(found, 1e-3 * asks.at("guess_ms").number(1e-9, kLongestGuessMs));
  }
  if (asks.has("pinned")) comparison = answer_on_comparison(answered_run(asks.at("pinned")), found);
  document.require_known();
  const std::vector<PredictedRate> rates =
      explored_rates(found.asked, found.card, found.run.ranks, found.one, found.step);
  const std::optional<double> serial = explored_serial_share(rates);
  const std::string title =
      fmt::format("Simulated: a step takes {}", simulated_time(found.step.step_s));
  const Answer answer = {
      {"headline", headline_of(found)},
      {"setting", fmt::format("{}, on {} of {}: {} samples/s. {}", text_of(found.asked),
                              counted(found.run.ranks, noun_of(found.asked)), found.card.name,
                              simulated_number(found.samples_per_s()), error_note(found.card))},
      {"command", command_line_of(Workload{found.run})},
      {"predict", found.predict},
      {"step_s", found.step.step_s},
      {"samples_per_s", found.samples_per_s()},
      {"account", answer_on_account(found.step)},
      {"speed_ups", answer_on_rates(rates)},
      {"serial_share", serial ? Answer(*serial) : Answer()},
      {"memory", answer_on_memory(found.devices)},
      {"shortage",
       found.too_large.empty() ? "" : fmt::format("Does not fit: {}.", found.too_large)},
      {"messages", answer_on_messages(*found.programs)},
      {"explain", explain(found.programs->step())},
      {"guess", guess},
      {"comparison", comparison},
      {"timeline_svg",
       svg_of(explored_timeline(found.run, found.card, found.programs->step(), found.step))},
      {"account_svg", svg_of(account_plot(title, {{"step", &found.step}}))},
      {"memory_svg", svg_of(memory_plot(found.asked, found.devices, found.memory_bytes))},
      {"speed_up_svg", svg_of(speed_up_plot(found.asked, rates))}};
  return answer.dump();
}

}  // namespace barestep
