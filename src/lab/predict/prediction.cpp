#include "lab/predict/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "core/error.h"
#include "core/statistics.h"
#include "core/units.h"
#include "lab/predict/simulator.h"
#include "lab/report/findings.h"
#include "options/options.h"
#include "profiler/account.h"
#include "train/pass_schedule.h"

namespace barestep {
namespace {

/// Transformers of fewer rows and numbers: their products have more flops.
constexpr std::int64_t kLargestBatch = 1 << 20;
constexpr std::int64_t kLargestWidth = 1 << 17;
constexpr std::int64_t kLargestBlockWidth = 1 << 13;

bool is_transformer(const PredictedModel& model) {
  return model.others.model.block == BlockKind::kTransformer;
}

std::int64_t length_of(const PredictedModel& model) {
  return is_transformer(model) ? model.others.model.length.value_or(kDefaultLength) : 1;
}

/// Smaller differences are a tie: the model is not more accurate than this.
constexpr double kTie = 0.01;

constexpr std::string_view kDataParallelName = "data-parallel";
constexpr std::string_view kTensorName = "tensor";
constexpr std::string_view kPipelineName = "pipeline";

std::string_view scheme_of_model(const PredictedModel& model) {
  if (model.tensor == kAllRanks) return kTensorName;
  if (model.pipeline == kAllRanks) return kPipelineName;
  return model.data_parallel ? kDataParallelName : name_of(model.scheme);
}

/// The number of ranks that share a copy of the model at the least.
std::int64_t least_per_copy(const PredictedModel& model) {
  return std::max<std::int64_t>(model.tensor, 1) * std::max<std::int64_t>(model.pipeline, 1);
}

/// The copies of the model on so many ranks.
std::int64_t copies_of(const PredictedModel& model, int ranks) {
  const bool is_one = model.tensor == kAllRanks || model.pipeline == kAllRanks;
  return is_one ? 1 : std::max<std::int64_t>(1, ranks / least_per_copy(model));
}

/// How many ranks share a copy of the model.
void cut_model(const PredictedModel& model, int ranks, ParallelConfig& parallel) {
  parallel.tensor = model.tensor == kAllRanks ? ranks / model.pipeline : model.tensor;
  parallel.pipeline = model.pipeline == kAllRanks ? ranks / model.tensor : model.pipeline;
  parallel.schedule = model.schedule;
  parallel.micro_batches = model.micro_batches;
}

/// Whether each of so many ranks would have a part of the model: tensor ranks share the heads of
/// transformer blocks and the outputs of Linears, stages the layers.
bool has_parts_for(const PredictedModel& model, int ranks) {
  ParallelConfig parallel;
  cut_model(model, ranks, parallel);
  const bool has_heads = model.others.model.block == BlockKind::kTransformer;
  const std::int64_t parts = has_heads ? heads_of(model.others.model, model.dim) : model.dim;
  return parallel.tensor <= parts && parallel.pipeline <= model.depth;
}

/// The noun for one rank or device.
std::string_view noun_of(const PredictedModel& model) {
  return model.data_parallel ? "device" : "rank";
}

std::int64_t step_samples(const PredictedModel& model, int ranks) {
  return model.batch_size * (model.batch_per_rank ? copies_of(model, ranks) : 1);
}

double samples_per_s(const PredictedModel& model, int ranks, double step_s) {
  return static_cast<double>(step_samples(model, ranks)) / step_s;
}

double samples_per_s(const PredictedModel& model, const MachineCard& card, int ranks) {
  return samples_per_s(model, ranks, predicted_step(model, card, ranks).step_s);
}

/// The least number of several ranks: two, or as many as share a copy of the model.
int least_several(const PredictedModel& model) {
  return static_cast<int>(std::max<std::int64_t>(2, least_per_copy(model)));
}

/// False also for a model that several ranks cannot share.
bool several_ranks_pay(const PredictedModel& model, const MachineCard& card) {
  const int several = least_several(model);
  return can_run(model, card, several) &&
         samples_per_s(model, card, several) > (1 + kTie) * samples_per_s(model, card, 1);
}

/// A range of sizes, for sentences.
struct SearchedSizes {
  std::int64_t PredictedModel::*size;
  const char* name;
  std::int64_t min, max;
};

/// "from a batch of 256": the least size down to which, halving from the largest, several ranks
/// always pay off; the largest is one whose steps can be counted.
std::string pays_from(PredictedModel model, const MachineCard& card, const SearchedSizes& sizes) {
  // A given number of heads need not divide other widths.
  if (sizes.size == &PredictedModel::dim) model.others.model.heads.reset();
  std::int64_t& size = model.*sizes.size;
  const auto can_be_counted = [&] {
    const TrainConfig config = workload_of(model, card, least_several(model)).config;
    return is_countable(config, config.data.batch_size);
  };
  for (size = sizes.max; size > sizes.min && !can_be_counted();) size /= 2;
  const std::int64_t largest = size;
  std::int64_t from = 0;
  for (; size >= sizes.min && several_ranks_pay(model, card); size /= 2) from = size;
  return from > 0 ? fmt::format("from a {} of {}", sizes.name, from)
                  : fmt::format("at no {} up to {}", sizes.name, largest);
}

std::string pays_sentence(const PredictedModel& model, const MachineCard& card) {
  const int count = least_several(model);
  const std::string several =
      (count == 2 ? "two" : std::to_string(count)) + " " + noun_for(2, noun_of(model));
  if (card.max_ranks() < count) {
    return fmt::format("The machine has {}, so {} cannot pay off.",
                       card.max_ranks() == 1 ? "one device" : counted(card.max_ranks(), "device"),
                       several);
  }
  const std::int64_t largest = std::max<std::int64_t>(kLargestBatch / length_of(model), 2);
  std::string text = fmt::format(
      "at width {} {} are faster than one, by more than {:.0f} %, {}", model.dim, several,
      100 * kTie, pays_from(model, card, {&PredictedModel::batch_size, "batch", 2, largest}));
  if (!model.batch_per_rank && model.batch_size < 2)
    return text + "; a batch of 1 cannot be divided.";
  const std::int64_t widest = is_transformer(model) ? kLargestBlockWidth : kLargestWidth;
  return text + fmt::format("; at a batch of {} {}.", model.batch_size,
                            pays_from(model, card, {&PredictedModel::dim, "width", 64, widest}));
}

[[noreturn]] void refuse_prediction(const char* what, std::string value, std::string why,
                                    std::string remedy) {
  fail(ExitCode::kConfiguration, {.what = what,
                                  .value = std::move(value),
                                  .why = std::move(why),
                                  .remedy = std::move(remedy)});
}

void require_slow_rank(const PredictedModel& model, const std::vector<int>& ranks) {
  if (!model.slow_rank) return;
  const std::string value = fmt::format("{}:{}", model.slow_rank->rank, model.slow_rank->delay_ms);
  if (model.data_parallel) {
    refuse_prediction("--slow-rank", value, "data-parallel has devices, not ranks",
                      "leave it out, or use another --scheme");
  }
  for (const int count : ranks) {
    if (count == 1 || model.slow_rank->rank < count) continue;
    refuse_prediction("--slow-rank", value,
                      fmt::format("of {} the last is {}", counted(count, "rank"), count - 1),
                      "name a lower one, or ask for more --ranks");
  }
  if (std::ranges::all_of(ranks, [](int count) { return count == 1; })) {
    refuse_prediction("--slow-rank", value, "a single rank keeps no other waiting",
                      "use --delay-ms, or ask for more --ranks");
  }
}

bool has_rate(const MachineCard& card, Precision precision) {
  if (precision == Precision::kFp32) return true;
  if (precision == Precision::kInt8) return false;
  return (type_of(precision) != DType::kF32 ? card.half_flops_per_s : card.tf32_flops_per_s) > 0;
}

}  // namespace

void require_machine(const PredictedModel& model, const MachineCard& card,
                     const std::vector<int>& ranks) {
  const int max = *std::ranges::max_element(ranks);
  if (max > card.max_ranks()) {
    refuse_prediction(
        "--ranks", std::to_string(max),
        fmt::format("the card of {} has {}", card.name, counted(card.max_ranks(), "device")),
        "ask for fewer, or for a machine with a network");
  }
  const Update update = model.others.training.update;
  if (card.on_gpu && update == Update::kFused) {
    refuse_prediction("--update", std::string(name_of(update)),
                      fmt::format("the card of {} has no rate of it", card.name),
                      "use --update separate, or leave it out");
  }
  if (max == 1 && update == Update::kPerBucket) {
    refuse_prediction("--update", std::string(name_of(update)), "a single rank reduces no bucket",
                      "use --update separate, or ask for more --ranks");
  }
  if (has_rate(card, model.precision)) return;
  const bool is_half = type_of(model.precision) != DType::kF32;
  refuse_prediction("--precision", std::string(name_of(model.precision)),
                    fmt::format("the card of {} has no rate of products for it", card.name),
                    fmt::format("use --precision fp32, or a card that states device.{}_flops_per_s",
                                is_half ? "half" : "tf32"));
}

namespace {

void require_ranks(const PredictedModel& model, const MachineCard& card,
                   const std::vector<int>& ranks) {
  const int max = *std::ranges::max_element(ranks);
  if (model.data_parallel && max > card.node_ranks) {
    refuse_prediction(
        "--ranks", std::to_string(max),
        fmt::format("data-parallel stays in one process, and the card of {} has {} a node",
                    card.name, counted(card.node_ranks, "device")),
        "ask for fewer, or use another --scheme");
  }
  const bool is_one_copy = model.tensor == kAllRanks || model.pipeline == kAllRanks;
  if (is_one_copy && model.batch_per_rank) {
    refuse_prediction(
        "--batch-per-rank", "",
        fmt::format("the ranks of --scheme {} share all samples", scheme_of_model(model)),
        "leave it out, or use another --scheme");
  }
  if (model.tensor == kAllRanks && max / model.pipeline > model.dim) {
    refuse_prediction(
        "--ranks", std::to_string(max),
        fmt::format("the ranks of --scheme tensor share {}", counted(model.dim, "output")),
        "ask for fewer");
  }
  if (model.pipeline == kAllRanks && max / model.tensor > model.depth) {
    refuse_prediction("--ranks", std::to_string(max),
                      fmt::format("the model has {}, and each stage of --scheme pipeline needs one",
                                  counted(model.depth, "layer")),
                      "ask for fewer, or give a larger --depth");
  }
  if (model.data_parallel && least_per_copy(model) > 1) {
    refuse_prediction(model.tensor > 1 ? "--tensor" : "--pipeline",
                      std::to_string(least_per_copy(model)),
                      "the devices of data-parallel have the whole model",
                      "leave it out, or use another --scheme");
  }
  const bool divides_batch = !model.batch_per_rank && !model.data_parallel;
  if (divides_batch && copies_of(model, max) > model.batch_size) {
    refuse_prediction("--batch-size", std::to_string(model.batch_size),
                      fmt::format("leaves some of {} ranks without a sample", max),
                      "ask for fewer ranks, or give --batch-per-rank");
  }
}

/// "2, 4 and 8 ranks": those for which `holds` is true.
template <class Holds>
std::string counts_text(const std::vector<PredictedRate>& rates, std::string_view noun,
                        Holds holds) {
  std::vector<std::string> counts;
  int last = 0;
  for (const PredictedRate& each : rates) {
    if (!holds(each)) continue;
    counts.push_back(std::to_string(each.ranks));
    last = each.ranks;
  }
  return fmt::format("{} {}", list_text(counts), noun_for(counts.size() > 1 ? 2 : last, noun));
}

}  // namespace

void require_prediction(const PredictedModel& model, const MachineCard& card,
                        const std::vector<int>& ranks) {
  require_machine(model, card, ranks);
  require_ranks(model, card, ranks);
  require_slow_rank(model, ranks);
}

PredictedModel predicted_model(const TrainConfig& config) {
  return {.dim = config.model.dim.value_or(kDefaultDimCuda),
          .depth = config.model.depth.value_or(kDefaultDepth),
          .activation = config.model.activation,
          .batch_size = config.data.batch_size,
          .scheme = config.parallel.scheme,
          .tensor = config.parallel.tensor,
          .pipeline = config.parallel.pipeline,
          .schedule = config.parallel.schedule,
          .micro_batches = config.parallel.micro_batches,
          .precision = config.device.precision,
          .recompute = config.training.recompute,
          .delay_ms = config.injected.delay_ms,
          .slow_rank = config.injected.slow_rank,
          .others = config};
}

std::vector<std::string_view> scheme_names() {
  std::vector<std::string_view> names(std::begin(kNamesOf<RankScheme>),
                                      std::end(kNamesOf<RankScheme>));
  names.push_back(kDataParallelName);
  names.push_back(kTensorName);
  names.push_back(kPipelineName);
  return names;
}

void choose_scheme(PredictedModel& model, std::size_t number) {
  const std::size_t of_ranks = std::size(kNamesOf<RankScheme>);
  model.data_parallel = number == of_ranks;
  if (number == of_ranks + 1) model.tensor = kAllRanks;
  if (number == of_ranks + 2) model.pipeline = kAllRanks;
  model.scheme = number < of_ranks ? static_cast<RankScheme>(number) : RankScheme::kDdp;
}

Workload workload_of(const PredictedModel& model, const MachineCard& card, int ranks) {
  const TrainerKind several = model.data_parallel ? TrainerKind::kDataParallel : TrainerKind::kDdp;
  Workload workload{.trainer = ranks == 1 ? TrainerKind::kSingle : several,
                    .ranks = ranks,
                    .on_gpu = card.on_gpu,
                    .gpus = card.node_ranks};
  TrainConfig& config = workload.config;
  config = model.others;
  if (ranks == 1 || model.data_parallel) config.parallel = {};
  if (config.model.layers.empty()) {
    config.model.dim = model.dim;
    config.model.depth = model.depth;
  }
  config.model.activation = model.activation;
  config.data.batch_size = step_samples(model, ranks);
  config.device.precision = model.precision;
  config.training.recompute = model.recompute;
  config.parallel.scheme = model.scheme;
  if (ranks > 1) cut_model(model, ranks, config.parallel);
  config.injected.delay_ms = model.delay_ms;
  config.injected.slow_rank = ranks > 1 ? model.slow_rank : std::nullopt;
  // A single rank reduces nothing after which it could update a bucket.
  Update& update = config.training.update;
  if (ranks == 1 && update == Update::kPerBucket) update = Update::kSeparate;
  // Cards of GPUs have no rate of the fused update.
  if (card.on_gpu && update == Update::kAuto) update = Update::kSeparate;
  // On the CPU, each rank has one core.
  if (!card.on_gpu) config.device.threads = 1;
  return workload;
}

bool can_run(const PredictedModel& model, const MachineCard& card, int ranks) {
  if (ranks == 1) return true;
  if (ranks > card.max_ranks() || ranks % least_per_copy(model) != 0) return false;
  if (model.slow_rank && model.slow_rank->rank >= ranks) return false;
  if (model.data_parallel) return ranks <= card.node_ranks;
  if (!has_parts_for(model, ranks)) return false;
  ParallelConfig parallel;
  cut_model(model, ranks, parallel);
  const std::int64_t copies = copies_of(model, ranks);
  const bool has_servers = model.scheme == RankScheme::kServer;
  if (has_servers && model.others.parallel.servers > copies) return false;
  const std::int64_t least = parallel.pipeline > 1 ? micro_batches_of(parallel) : 1;
  return model.batch_per_rank || model.batch_size / copies >= least;
}

std::vector<int> usual_ranks(const PredictedModel& model, const MachineCard& card) {
  constexpr int kUsualRanks = 8;
  std::vector<int> usual = {1};
  const int least = least_several(model);
  for (int ranks = least; ranks <= std::max(kUsualRanks, least); ranks *= 2) {
    if (can_run(model, card, ranks)) usual.push_back(ranks);
  }
  return usual;
}

SimulatedStep predicted_step(const PredictedModel& model, const MachineCard& card, int ranks) {
  return predicted_run(workload_of(model, card, ranks), card);
}

std::string fastest_sentence(double one_rank, const std::vector<PredictedRate>& rates,
                             std::string_view noun) {
  const double best =
      std::ranges::max_element(rates, {}, &PredictedRate::samples_per_s)->samples_per_s;
  const auto several = [](const PredictedRate& each) { return each.ranks > 1; };
  if (std::ranges::none_of(rates, several)) {
    return fmt::format("Simulated: one {} would train {} samples/s.", noun, number_text(one_rank));
  }
  if (best > (1 + kTie) * one_rank) {
    const auto wins = [&](const PredictedRate& each) {
      return each.samples_per_s * (1 + kTie) >= best;
    };
    return fmt::format("Simulated: {} would train fastest{}, {} samples/s, {} as many as one {}.",
                       counts_text(rates, noun, wins),
                       std::ranges::count_if(rates, wins) > 1 ? " and tie within 1 %" : "",
                       number_text(best), factor_text(best / one_rank), noun);
  }
  const auto ties = [&](const PredictedRate& each) {
    return several(each) && each.samples_per_s * (1 + kTie) >= one_rank;
  };
  double max = 0;
  for (const PredictedRate& each : rates) {
    if (several(each)) max = std::max(max, each.samples_per_s);
  }
  return fmt::format("Simulated: {} would be no faster than one {}, which trains {} samples/s; {}.",
                     counts_text(rates, noun, several), noun, number_text(one_rank),
                     std::ranges::any_of(rates, ties)
                         ? counts_text(rates, noun, ties) + " would tie with it within 1 %"
                         : "the best would reach " + percent_text(max / one_rank) + " of that");
}

namespace {

std::string title_of(const PredictedModel& model, const MachineCard& card) {
  std::string title = fmt::format(
      "Simulated: {}, {} x {}, batch {}{}", scheme_of_model(model), model.dim, model.depth,
      model.batch_size, model.batch_per_rank ? " on each " + std::string(noun_of(model)) : "");
  if (is_transformer(model)) {
    const ModelConfig& blocks = model.others.model;
    title +=
        fmt::format(", transformer blocks, {}length {}, {} attention",
                    blocks.causal ? "causal, " : "", length_of(model), name_of(blocks.attention));
  }
  if (model.activation != Activation::kRelu) {
    title += fmt::format(", {}", model.activation == Activation::kNone ? "no activation"
                                                                       : name_of(model.activation));
  }
  if (model.precision != Precision::kFp32) title += fmt::format(", {}", name_of(model.precision));
  if (model.tensor > 1) title += fmt::format(", {} tensor ranks", model.tensor);
  if (model.pipeline > 1) title += fmt::format(", {} stages", model.pipeline);
  if (model.pipeline != 1) {
    title += fmt::format(", {}", name_of(model.schedule));
    if (model.micro_batches) title += " with " + counted(*model.micro_batches, "micro-batch");
  }
  if (model.recompute > 1) title += fmt::format(", recomputed in {} segments", model.recompute);
  if (model.delay_ms > 0) title += fmt::format(", {} ms before backward", model.delay_ms);
  if (model.slow_rank) {
    title += fmt::format(", {} ms more on rank {} of several", model.slow_rank->delay_ms,
                         model.slow_rank->rank);
  }
  return fmt::format("{}, on {}", title, card.name);
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

FindingTable communication_table(const PredictedModel& model, const MachineCard& card,
                                 const std::vector<int>& ranks) {
  FindingTable table{
      .title = "Simulated: communication by number of " + noun_for(2, noun_of(model)),
      .columns = {noun_for(2, noun_of(model)), "exchange", "bus bandwidth at most",
                  "of the largest in a step", "one way on each link", "concurrent kernels take"}};
  for (const int count : ranks) {
    if (count == 1 || !card.links_of(count).is_known()) continue;
    const WorkloadPrograms programs(workload_of(model, card, count));
    const Mesh& mesh = programs.mesh();
    for (const auto& [which, bytes] : largest_exchanges(programs.step(), mesh)) {
      table.rows.push_back(communication_row(card, mesh, which.first, which.second, bytes));
    }
  }
  return table;
}

/// A row for each stage of each number of ranks.
FindingTable stages_table(const PredictedModel& model,
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
                            time_text(account[Part::kForward] + account[Part::kLoss]),
                            time_text(account[Part::kBackward]),
                            time_text(account[Part::kOptimizer]), time_text(waits_s),
                            percent_text(waits_s / step.step_s)});
    }
    ParallelConfig parallel;
    cut_model(model, ranks, parallel);
    const PipelineSpec pipeline{.stages = static_cast<int>(parallel.pipeline),
                                .micro_batches = static_cast<int>(micro_batches_of(parallel)),
                                .schedule = parallel.schedule};
    table.rows.push_back({std::to_string(ranks), "equal stages (calculated)", "", "", "", "",
                          percent_text(ideal_bubble(pipeline))});
  }
  return table;
}

/// The products of device 0, each shape once.
FindingTable products_table(const PredictedModel& model, const MachineCard& card,
                            const std::vector<int>& ranks) {
  FindingTable table{.title = "Simulated: products by shape",
                     .columns = {noun_for(2, noun_of(model)), "product", "rows x columns x depth",
                                 "time", "rate"}};
  for (const int count : ranks) {
    const Workload workload = workload_of(model, card, count);
    const WorkloadPrograms programs(workload);
    const NodeSetting run = setting_of(workload, card);
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
                            time_text(seconds), rate_text(work.work / seconds, "FLOP/s")});
    }
  }
  return table;
}

/// A row for each number of ranks, with all parts that any step has.
FindingTable steps_table(const PredictedModel& model, const MachineCard& card,
                         const std::vector<std::pair<int, SimulatedStep>>& steps,
                         const std::vector<PredictedRate>& rates, double one_rate) {
  FindingTable table{.title = title_of(model, card),
                     .columns = {noun_for(2, noun_of(model)), "step time"}};
  std::vector<Part> parts;
  for (const Part part : kValuesOf<Part>) {
    const auto has = [&](const auto& each) { return each.second.account[part] > 0; };
    if (std::ranges::none_of(steps, has)) continue;
    parts.push_back(part);
    table.columns.emplace_back(name_of(part));
  }
  for (const char* name : {"samples/s", "speed-up", "efficiency"}) table.columns.push_back(name);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto& [count, step] = steps[i];
    std::vector<std::string> row = {std::to_string(count), time_text(step.step_s)};
    for (const Part part : parts) row.push_back(time_text(step.account[part]));
    const double rate = rates[i].samples_per_s, gain = rate / one_rate;
    for (auto& cell : {number_text(rate), factor_text(gain), percent_text(gain / count)}) {
      row.push_back(cell);
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace

Findings predict_scaling(const PredictedModel& model, const MachineCard& card,
                         const std::vector<int>& ranks) {
  require_prediction(model, card, ranks);
  PlotSeries simulated{.name = "simulated"}, ideal{.name = "ideal", .style = SeriesStyle::kDashed};
  const double one_rate = samples_per_s(model, card, 1);
  std::vector<PredictedRate> rates;
  std::vector<std::pair<int, SimulatedStep>> steps;
  for (const int count : ranks) {
    steps.emplace_back(count, predicted_step(model, card, count));
    const double rate = samples_per_s(model, count, steps.back().second.step_s);
    simulated.points.push_back(plot_point(count, rate / one_rate));
    ideal.points.push_back(plot_point(count, count));
    rates.push_back({count, rate});
  }
  Findings findings{.sentences = {fastest_sentence(one_rate, rates, noun_of(model))},
                    .tables = {steps_table(model, card, steps, rates, one_rate)},
                    .plots = {{.title = "Simulated speed-up",
                               .x_label = noun_for(2, noun_of(model)),
                               .y_label = "speed-up",
                               .log_x = true,
                               .log_y = true,
                               .series = {ideal, simulated}}}};
  // If the slow rank has a higher number, a run with two ranks does not include it.
  if (!model.slow_rank || model.slow_rank->rank < 2) {
    findings.sentences.push_back("Simulated: " + pays_sentence(model, card));
  }
  for (FindingTable& each :
       std::array{stages_table(model, steps), communication_table(model, card, ranks),
                  products_table(model, card, ranks)}) {
    if (!each.rows.empty()) findings.tables.push_back(std::move(each));
  }
  return findings;
}

bool can_predict(const Workload& workload, const MachineCard& card) {
  return !workload.sum && has_rate(card, workload.config.device.precision);
}

}  // namespace barestep
