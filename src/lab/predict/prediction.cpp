#include "lab/predict/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <variant>

#include "core/error.h"
#include "core/units.h"
#include "options/options.h"
#include "profiler/account.h"
#include "train/pass_schedule.h"

namespace barestep {
namespace {

/// Transformers of fewer rows and numbers: their products have more flops.
constexpr std::int64_t kLargestBatch = 1 << 20;
constexpr std::int64_t kLargestWidth = 1 << 17;
constexpr std::int64_t kLargestBlockWidth = 1 << 13;

/// Smaller differences are a tie: the model is not more accurate than this.
constexpr double kTie = 0.01;

/// Shares of a step that are worth a word.
constexpr double kCostly = 0.05;

double samples_per_s(const Run& run, double step_s) {
  return static_cast<double>(run.step_samples()) / step_s;
}

double samples_per_s(const Run& asked, const MachineCard& card, int ranks) {
  const Run run = run_on(asked, card, ranks);
  return samples_per_s(run, predicted_run(run, card).step_s);
}

/// False also for a model that several ranks cannot share.
bool several_ranks_pay(const Run& asked, const MachineCard& card) {
  const int several = least_several(asked);
  return can_run(asked, card, several) &&
         samples_per_s(asked, card, several) > (1 + kTie) * samples_per_s(asked, card, 1);
}

/// A range of sizes, for sentences.
struct SearchedSizes {
  const char* name;
  std::int64_t min, max;
  void (*set)(TrainConfig& config, std::int64_t size);
};

/// "from a batch of 256": the least size down to which, halving from the largest, several ranks
/// always pay off; the largest is one whose steps can be counted.
std::string pays_from(Run asked, const MachineCard& card, const SearchedSizes& sizes) {
  const auto holds_at = [&](std::int64_t size, const auto& holds) {
    sizes.set(asked.config, size);
    return holds();
  };
  const auto can_be_counted = [&] {
    const TrainConfig config = run_on(asked, card, least_several(asked)).config;
    return is_countable(config, config.data.batch_size);
  };
  std::int64_t largest = sizes.max;
  while (largest > sizes.min && !holds_at(largest, can_be_counted)) largest /= 2;
  std::int64_t from = 0;
  for (std::int64_t size = largest; size >= sizes.min; size /= 2) {
    if (!holds_at(size, [&] { return several_ranks_pay(asked, card); })) break;
    from = size;
  }
  return from > 0 ? fmt::format("from a {} of {}", sizes.name, from)
                  : fmt::format("at no {} up to {}", sizes.name, largest);
}

std::string pays_text(const Run& asked, const MachineCard& card) {
  const int count = least_several(asked);
  const std::string several =
      (count == 2 ? "two" : std::to_string(count)) + " " + noun_for(2, noun_of(asked));
  if (card.max_ranks() < count) {
    return fmt::format("The machine has {}, so {} cannot pay off.",
                       card.max_ranks() == 1 ? "one device" : counted(card.max_ranks(), "device"),
                       several);
  }
  const Run one = run_on(asked, card, 1);
  const ModelConfig& model = one.config.model;
  const bool is_transformer = model.block == BlockKind::kTransformer;
  const std::int64_t length = is_transformer ? model.length.value_or(kDefaultLength) : 1;
  const SearchedSizes batches{
      "batch", 2, std::max<std::int64_t>(kLargestBatch / length, 2),
      [](TrainConfig& config, std::int64_t size) { config.data.batch_size = size; }};
  const SearchedSizes widths{"width", 64, is_transformer ? kLargestBlockWidth : kLargestWidth,
                             [](TrainConfig& config, std::int64_t size) {
                               config.model.dim = size;
                               // A given number of heads need not divide other widths.
                               config.model.heads.reset();
                             }};
  std::string text = fmt::format("at width {} {} are faster than one, by more than {:.0f} %, {}",
                                 one.dim(), several, 100 * kTie, pays_from(asked, card, batches));
  if (!asked.config.parallel.batch_per_rank && asked.batch_size() < 2) {
    return text + "; a batch of 1 cannot be divided.";
  }
  if (!model.layers.empty()) return text + ".";
  return text +
         fmt::format("; at a batch of {} {}.", asked.batch_size(), pays_from(asked, card, widths));
}

/// "2, 4 and 8 ranks": those for which `holds` is true.
template <class Holds>
std::string counts_text(const std::vector<PredictedRate>& rates, std::string_view noun,
                        Holds holds) {
  std::vector<std::string> counts;
  int last = 0;
  for (const PredictedRate& rate : rates) {
    if (!holds(rate)) continue;
    counts.push_back(std::to_string(rate.ranks));
    last = rate.ranks;
  }
  return fmt::format("{} {}", list_text(counts), noun_for(counts.size() > 1 ? 2 : last, noun));
}

/// The bytes of a step's largest exchange of each kind on each axis.
std::map<std::pair<Axis, ExchangeKind>, double> largest_exchanges(const Program& step,
                                                                  const Mesh& mesh) {
  std::map<std::pair<Axis, ExchangeKind>, double> largest;
  for (const Node& node : step.nodes()) {
    const auto* collective = std::get_if<Collective>(&node.op);
    if (collective == nullptr) continue;
    const Axis axis = axis_of(*collective);
    if (mesh.size_of(axis) == 1) continue;
    double& max = largest[{axis, exchange_kind_of(*collective)}];
    max = std::max(max, static_cast<double>(cost_of(node.op).message_bytes));
  }
  return largest;
}

/// "all_reduce", and which ranks do it if not all do: "all_reduce of 2 tensor ranks".
std::string exchange_text(ExchangeKind exchange, Axis axis, const Mesh& mesh) {
  std::string text(name_of(exchange));
  if (exchange == ExchangeKind::kSendReceive) {
    return text + (axis == Axis::kPipeline ? " of two stages" : " of two ranks");
  }
  if (!mesh.cuts_model() || axis == Axis::kAll) return text;
  return text + fmt::format(" of {} {} ranks", mesh.size_of(axis), name_of(axis));
}

/// The bus bandwidth is highest for the largest size in any of the kind's tables.
std::vector<std::string> communication_row(const MachineCard& card, const Mesh& mesh, Axis axis,
                                           ExchangeKind exchange, double bytes) {
  const int ranks = exchange == ExchangeKind::kSendReceive ? 2 : mesh.size_of(axis);
  const int span = mesh.span_of(axis);
  const LinkRates& links = card.links_of(span);
  double max = 0;
  for (const ExchangeTable& table : links.tables_of(exchange)) {
    max = std::max(max, table.seconds_by_bytes.back().first);
  }
  const auto at_size = [&](double size) {
    return fmt::format("{} with {}",
                       rate_text(bus_bandwidth(card, exchange, size, ranks, span), "B/s"),
                       human_bytes(static_cast<std::int64_t>(size)));
  };
  const double on_link = link_bytes(card, exchange, bytes, ranks, span) /
                         exchange_s(card, exchange, bytes, ranks, span);
  const std::string link = links.link_bytes_per_s > 0
                               ? fmt::format("{}, {}", rate_text(on_link, "B/s"),
                                             percent_text(on_link / links.link_bytes_per_s))
                               : rate_text(on_link, "B/s");
  const MachineLoad* load = card.load_of(mesh.ranks(), 1);
  const std::string beside = card.on_gpu ? fmt::format("{:.2f}x as long", links.kernel_slowdown)
                                         : fmt::format("a share of the cores, {:.2f}x as long",
                                                       load == nullptr ? 1 : load->contention);
  return {std::to_string(mesh.ranks()),
          exchange_text(exchange, axis, mesh),
          at_size(max),
          at_size(bytes),
          link,
          beside};
}

FindingTable communication_table(const Run& asked, const MachineCard& card,
                                 const std::vector<int>& ranks) {
  FindingTable table{
      .title = "Simulated: communication by number of " + noun_for(2, noun_of(asked)),
      .columns = {noun_for(2, noun_of(asked)), "exchange", "bus bandwidth at most",
                  "of the largest in a step", "one way on each link", "concurrent kernels take"}};
  for (const int count : ranks) {
    if (count == 1 || !card.links_of(count).is_known()) continue;
    const WorkloadPrograms programs(run_on(asked, card, count));
    const Mesh& mesh = programs.mesh();
    for (const auto& [which, bytes] : largest_exchanges(programs.step(), mesh)) {
      table.rows.push_back(communication_row(card, mesh, which.first, which.second, bytes));
    }
  }
  return table;
}

/// A row for each stage of each number of ranks.
FindingTable stages_table(const Run& asked, const MachineCard& card,
                          const std::vector<std::pair<int, SimulatedStep>>& steps) {
  FindingTable table{
      .title = "Simulated: stages, and the share of the step in which each waits",
      .columns = {"ranks", "stage", "forward", "backward", "optimizer", "waits", "of the step"}};
  for (const auto& [ranks, step] : steps) {
    if (step.stages.size() == 1) continue;
    for (std::size_t stage = 0; stage < step.stages.size(); ++stage) {
      const StepAccount& account = step.stages[stage];
      const double waits_s = account.waits_for_others_s();
      table.rows.push_back({std::to_string(ranks), std::to_string(stage),
                            simulated_time(account[Part::kForward] + account[Part::kLoss]),
                            simulated_time(account[Part::kBackward]),
                            simulated_time(account[Part::kOptimizer]), simulated_time(waits_s),
                            simulated_percent(waits_s / step.step_s)});
    }
    const ParallelConfig parallel = run_on(asked, card, ranks).config.parallel;
    const PipelineSpec pipeline{.stages = static_cast<int>(parallel.pipeline),
                                .micro_batches = static_cast<int>(micro_batches_of(parallel)),
                                .schedule = parallel.schedule};
    table.rows.push_back({std::to_string(ranks), "equal stages (calculated)", "", "", "", "",
                          percent_text(ideal_bubble(pipeline))});
  }
  return table;
}

/// The products of device 0, each shape once.
FindingTable products_table(const Run& asked, const MachineCard& card,
                            const std::vector<int>& ranks) {
  FindingTable table{.title = "Simulated: products by shape",
                     .name = kProductsTable,
                     .columns = {noun_for(2, noun_of(asked)), "product", "rows x columns x depth",
                                 "time", "rate"}};
  for (const int count : ranks) {
    const Run asked_here = run_on(asked, card, count);
    const WorkloadPrograms programs(asked_here);
    const NodeSetting run = setting_of(asked_here, card);
    std::set<std::pair<std::string, ProductSize>> seen;
    for (const Node& node : programs.step().nodes()) {
      const auto* op = std::get_if<DeviceOp>(&node.op);
      const auto size = op == nullptr ? std::nullopt : product_of(*op);
      if (!size || node.device != 0) continue;
      const OpSize work = size_of(*op);
      if (!seen.insert({work.op, *size}).second) continue;
      const double seconds = node_s(programs.step(), node, card, run);
      table.rows.push_back({std::to_string(count), work.op,
                            fmt::format("{} x {} x {}", size->rows, size->cols, size->depth),
                            simulated_time(seconds), rate_text(work.work / seconds, "FLOP/s")});
    }
  }
  return table;
}

/// A row for each number of ranks, with all parts that any step has. `one_rate` is 0 if one rank
/// has too little memory.
FindingTable steps_table(const Run& asked, const MachineCard& card,
                         const std::vector<std::pair<int, SimulatedStep>>& steps, double one_rate) {
  FindingTable table{.title = fmt::format("Simulated: {}, on {}", text_of(asked), card.name),
                     .columns = {noun_for(2, noun_of(asked)), "step time"}};
  std::vector<Part> parts;
  for (const Part part : kValuesOf<Part>) {
    const auto has = [&](const auto& step) { return step.second.account[part] > 0; };
    if (std::ranges::none_of(steps, has)) continue;
    parts.push_back(part);
    table.columns.emplace_back(name_of(part));
  }
  const std::string noun(noun_of(asked));
  for (const std::string& name : {std::string("samples/s"), std::string("speed-up"),
                                  std::string("efficiency"), "memory of a " + noun}) {
    table.columns.push_back(name);
  }
  for (const auto& [count, step] : steps) {
    const Run run = run_on(asked, card, count);
    std::vector<std::string> row = {std::to_string(count), simulated_time(step.step_s)};
    for (const Part part : parts) row.push_back(simulated_time(step.account[part]));
    const double rate = samples_per_s(run, step.step_s), gain = rate / one_rate;
    row.push_back(simulated_number(rate));
    row.push_back(one_rate > 0 ? simulated_factor(gain) : "-");
    row.push_back(one_rate > 0 ? simulated_percent(gain / count) : "-");
    row.push_back(human_bytes(max_device_bytes(run)) +
                  (why_too_large(run, card).empty() ? "" : ", too much"));
    table.rows.push_back(std::move(row));
  }
  return table;
}

/// What does not fit comes first, and is not among the fastest.
std::vector<Finding> rate_texts(const Run& asked, const MachineCard& card,
                                const std::vector<PredictedRate>& rates, double one_rate) {
  std::vector<Finding> sentences;
  std::vector<PredictedRate> fitting;
  for (const PredictedRate& rate : rates) {
    const std::string why = why_too_large(run_on(asked, card, rate.ranks), card);
    if (why.empty()) {
      fitting.push_back(rate);
    } else {
      sentences.emplace_back(
          fmt::format("Does not fit: {}. Its times are those of enough memory.", why));
    }
  }
  if (!fitting.empty()) {
    sentences.push_back(fastest_text(one_rate, fitting, noun_of(asked)));
  }
  return sentences;
}

}  // namespace

SimulatedStep predicted_step(const Run& asked, const MachineCard& card, int ranks) {
  return predicted_run(run_on(asked, card, ranks), card);
}

std::string fastest_text(double one_rank, const std::vector<PredictedRate>& rates,
                         std::string_view noun) {
  const double best =
      std::ranges::max_element(rates, {}, &PredictedRate::samples_per_s)->samples_per_s;
  const auto several = [](const PredictedRate& rate) { return rate.ranks > 1; };
  if (std::ranges::none_of(rates, several)) {
    return fmt::format("Simulated: one {} would train {} samples/s.", noun,
                       simulated_number(one_rank));
  }
  if (best > (1 + kTie) * one_rank) {
    const auto wins = [&](const PredictedRate& rate) {
      return rate.samples_per_s * (1 + kTie) >= best;
    };
    return fmt::format(
        "Simulated: {} would train fastest{}, {} samples/s{}.", counts_text(rates, noun, wins),
        std::ranges::count_if(rates, wins) > 1 ? " and tie within 1 %" : "", simulated_number(best),
        one_rank == 0
            ? ""
            : fmt::format(", {} as many as one {}", simulated_factor(best / one_rank), noun));
  }
  std::vector<std::string> reached;
  for (const PredictedRate& rate : rates) {
    if (!several(rate)) continue;
    const bool ties = rate.samples_per_s * (1 + kTie) >= one_rank;
    reached.push_back(fmt::format(
        "{} reach {}", rate.ranks,
        ties ? "all of it within 1 %" : simulated_percent(rate.samples_per_s / one_rank)));
  }
  return fmt::format("Simulated: more {} do not help here: of the speed of one, {}.",
                     noun_for(2, noun), list_text(reached));
}

std::string cost_of_sharing(const Run& one, const StepAccount& one_step, const Run& run,
                            const SimulatedStep& step) {
  const double share = static_cast<double>(run.step_samples()) /
                       (static_cast<double>(one.step_samples()) * run.ranks);
  const auto excess_s = [&](Part part) { return step.account[part] - share * one_step[part]; };
  const Part most = std::ranges::max(kValuesOf<Part>, {}, excess_s);
  if (excess_s(most) <= kCostly * step.step_s) return "";
  return fmt::format("{} takes {} of the step", traits_of(most).words,
                     simulated_percent(step.account[most] / step.step_s));
}

Findings predict_scaling(const Run& asked, const MachineCard& card, const std::vector<int>& ranks) {
  require_prediction(asked, card, ranks);
  const Run one = run_on(asked, card, 1);
  const SimulatedStep one_step = predicted_run(one, card);
  const double one_rate = samples_per_s(one, one_step.step_s);
  const double compared_rate = why_too_large(one, card).empty() ? one_rate : 0;
  std::vector<PredictedRate> rates;
  std::vector<std::pair<int, SimulatedStep>> steps;
  for (const int count : ranks) {
    const Run run = run_on(asked, card, count);
    steps.emplace_back(count, predicted_run(run, card));
    const double rate = samples_per_s(run, steps.back().second.step_s);
    rates.push_back({count, rate, steps.back().second.step_s});
  }
  Findings findings{.timed = rate_texts(asked, card, rates, compared_rate),
                    .tables = {steps_table(asked, card, steps, compared_rate)}};
  if (steps.back().first > 1) {
    const auto& [count, step] = steps.back();
    const std::string cost =
        cost_of_sharing(one, one_step.account, run_on(asked, card, count), step);
    if (!cost.empty()) {
      findings.timed.push_back(
          fmt::format("Simulated: with {}, {}.", counted(count, noun_of(asked)), cost));
    }
  }
  // If the slow rank has a higher number, a run with two ranks does not include it.
  if (const auto& slow = asked.config.injected.slow_rank; !slow || slow->rank < 2) {
    findings.timed.push_back("Simulated: " + pays_text(asked, card));
  }
  for (FindingTable& table :
       std::array{stages_table(asked, card, steps), communication_table(asked, card, ranks),
                  products_table(asked, card, ranks)}) {
    if (!table.rows.empty()) findings.tables.push_back(std::move(table));
  }
  return findings;
}

std::string why_no_prediction(const Workload& workload, const MachineCard& card) {
  const Precision precision = workload.config.device.precision;
  if (has_rate(card, precision)) return "";
  return fmt::format("the card of {} has no rate of products in {}", card.name, name_of(precision));
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

std::string why_too_large(const Run& run, const MachineCard& card) {
  if (card.device_bytes == 0) return "";
  const std::int64_t sharers = card.on_gpu ? 1 : run.ranks;
  const std::int64_t bytes = checked_multiply(max_device_bytes(run), sharers, "a run's memory");
  if (bytes <= card.device_bytes) return "";
  const std::string several = counted(run.ranks, noun_of(run));
  return fmt::format("{} {}, and {} {}",
                     run.ranks == 1 ? fmt::format("one {} needs", noun_of(run))
                     : sharers == 1 ? fmt::format("each of {} needs", several)
                                    : several + " need",
                     human_bytes(bytes), card.on_gpu ? "a device has" : "the machine has",
                     human_bytes(card.device_bytes));
}

}  // namespace barestep
