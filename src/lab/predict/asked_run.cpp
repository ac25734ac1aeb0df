#include "lab/predict/asked_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "core/lookup.h"
#include "core/units.h"
#include "options/option_values.h"

namespace barestep {
namespace {

constexpr std::string_view kTensorName = "tensor";
constexpr std::string_view kPipelineName = "pipeline";

void choose_scheme(Run& asked, std::string_view name) {
  if (name == kTensorName) asked.config.parallel.tensor = kAllRanks;
  if (name == kPipelineName) asked.config.parallel.pipeline = kAllRanks;
  SchemeKind& scheme = asked.config.parallel.scheme;
  scheme = value_named<SchemeKind>(name).value_or(scheme);
}

std::string_view scheme_of(const Run& asked) {
  const ParallelConfig& parallel = asked.config.parallel;
  if (parallel.tensor == kAllRanks) return kTensorName;
  return parallel.pipeline == kAllRanks ? kPipelineName : name_of(parallel.scheme);
}

/// The number of ranks that share a copy of the model at the least.
std::int64_t least_per_copy(const ParallelConfig& parallel) {
  return std::max<std::int64_t>(parallel.tensor, 1) * std::max<std::int64_t>(parallel.pipeline, 1);
}

/// Why a value of an option is not simulated; empty if it is, or has no effect on a step.
std::string_view why_not_simulated(const Option& option, const Run& asked, const MachineCard& card,
                                   int ranks) {
  const std::string_view never = why_never_simulated(option);
  if (!never.empty()) return never;
  const std::string_view name = option.name;
  if (asked.scheme() == SchemeKind::kDataParallel) {
    const bool is_batch = name == "batch-per-rank" || name == "global-batch-size";
    const auto own = names_of_options(asked.scheme());
    if (!is_batch && std::ranges::find(own, name) == own.end()) return "data-parallel has none";
  }
  if (name == "threads" && card.on_gpu) return "is for the CPU, and the machine's devices are GPUs";
  if (name == "data" && asked.config.data.kind != DataKind::kRandn) {
    return "a prediction reads no files";
  }
  const Update update = asked.config.training.update;
  if (name == "update" && update == Update::kFused && card.on_gpu) {
    return "cards of GPUs have no rate of it";
  }
  if (name == "update" && update == Update::kPerBucket && ranks == 1) {
    return "a single rank reduces no bucket";
  }
  return "";
}

void require_simulated(const Run& asked, const MachineCard& card, int ranks) {
  for (const Option& option : options_to_predict()) {
    const std::optional<std::string> text = option.value.text(asked.config);
    if (text == option.value.text({})) continue;
    const std::string_view why = why_not_simulated(option, asked, card, ranks);
    if (why.empty()) continue;
    refuse_options(fmt::format("--{}", option.name), is_flag(option) ? "" : text.value_or(""),
                   std::string(why), "leave it out");
  }
}

/// Makes a batch size of each rank that of all.
void count_whole_batch(TrainConfig& config, int ranks) {
  ParallelConfig& parallel = config.parallel;
  if (!parallel.batch_per_rank || parallel.global_batch) return;
  parallel.batch_per_rank = false;
  config.data.batch_size *= std::max<std::int64_t>(ranks / least_per_copy(parallel), 1);
}

/// The least number of several ranks, all with samples: options that only several ranks have must
/// not contradict each other where one rank alone is predicted.
Run several_with_samples(const Run& asked, const MachineCard& card) {
  constexpr std::int64_t kEnoughForARank = 64;
  const int several = least_several(asked);
  Run run = run_on(asked, card, several);
  run.config.data.batch_size = std::max(run.batch_size(), several * kEnoughForARank);
  return run;
}

}  // namespace

std::string_view why_never_simulated(const Option& option) {
  constexpr std::string_view kOfRuns = "is for runs, and a prediction runs nothing";
  constexpr std::string_view kNoRates = "machine cards have no rates that it changes";
  constexpr std::string_view kOfCard = "the machine's card says what devices it has";
  static constexpr std::pair<std::string_view, std::string_view> kNever[] = {
      {"affinity", kNoRates}, {"autotune", kNoRates},  {"device", kOfCard},
      {"devices", kOfCard},   {"flip", kOfRuns},       {"gemm", kNoRates},
      {"graph", kNoRates},    {"show-split", kOfRuns}, {"transport", kNoRates}};
  if (option.group == "Observing" || option.group == "Files") return kOfRuns;
  const std::string_view* const why = found_in(kNever, option.name);
  return why == nullptr ? "" : *why;
}

std::span<const Option> options_to_predict() {
  static const std::vector<Option> all = [] {
    std::vector<Option> options;
    const auto has = [&](std::string_view name) {
      return std::ranges::find(options, name, &Option::name) != options.end();
    };
    for (auto program = std::rbegin(kTrainingPrograms); program != std::rend(kTrainingPrograms);
         ++program) {
      for (const Option& option : options_of(program->usual)) {
        const bool is_of_each = has_ranks(program->usual) && option.name == "batch-size";
        if (!is_of_each && !has(option.name)) options.push_back(option);
      }
    }
    options.push_back({.name = "batch-per-rank",
                       .help = "--batch-size is each rank's, which is weak scaling",
                       .value = {JsonKind::kBoolean, "", "",
                                 [](const RawValue& given, TrainConfig& config) {
                                   no_value(given);
                                   config.parallel.batch_per_rank = true;
                                 },
                                 [](const TrainConfig& config) {
                                   return config.parallel.batch_per_rank
                                              ? std::optional<std::string>("true")
                                              : std::nullopt;
                                 }},
                       .group = "Data"});
    return options;
  }();
  return all;
}

std::vector<std::string_view> scheme_names() {
  // One device alone is one of --ranks.
  std::vector<std::string_view> names(std::begin(kNamesOf<SchemeKind>) + 1,
                                      std::end(kNamesOf<SchemeKind>));
  names.insert(names.end(), {kTensorName, kPipelineName});
  return names;
}

std::string options_text(const GivenOptions& given) {
  std::string text;
  for (const auto& [name, value] : given) {
    text += " --" + name;
    if (value != "true") text += " " + value;
  }
  return text;
}

Run asked_run(const GivenOptions& given) {
  Run asked;
  if (const auto scheme = given.find("scheme"); scheme != given.end()) {
    const RawValue value{.where = "--scheme", .text = scheme->second};
    choose_scheme(asked, scheme_names()[choice(value, scheme_names())]);
  }
  for (const auto& [name, text] : given) {
    const RawValue value{.where = "--" + name, .text = text};
    if (name == "scheme") continue;
    const auto found = std::ranges::find(options_to_predict(), name, &Option::name);
    if (found == options_to_predict().end()) {
      fail(ExitCode::kUsage,
           {"option", value.where, "no trainer has it", "see the trainers' --help"});
    }
    found->value.read(value, asked.config);
  }
  return asked;
}

GivenOptions given_of(const Run& run) {
  TrainConfig config = run.config;
  count_whole_batch(config, run.ranks);
  GivenOptions given;
  for (const Option& option : options_of(run.scheme())) {
    const std::optional<std::string> text = option.value.text(config);
    if (text && text != option.value.text({})) given.emplace(option.name, *text);
  }
  return given;
}

Run run_on(const Run& asked, const MachineCard& card, int ranks) {
  Run run = asked;
  run.ranks = ranks;
  run.on_gpu = card.on_gpu;
  run.gpus = card.node_ranks;
  TrainConfig& config = run.config;
  ParallelConfig& parallel = config.parallel;
  if (config.model.layers.empty()) {
    config.model.dim = run.config.model.dim.value_or(kDefaultDimCuda);
    config.model.depth = run.config.model.depth.value_or(kDefaultDepth);
  }
  // On the CPU, each rank has one core. Cards of GPUs have no rate of the fused update.
  Update& update = config.training.update;
  if (card.on_gpu && update == Update::kAuto) update = Update::kSeparate;
  if (!card.on_gpu) config.device.threads = config.device.threads.value_or(1);
  if (ranks == 1) {
    parallel = {.scheme = SchemeKind::kSingle};
    config.injected.slow_rank.reset();
    if (update == Update::kPerBucket) update = Update::kSeparate;
    return run;
  }
  if (asked.scheme() == SchemeKind::kSingle) parallel.scheme = SchemeKind::kDdp;
  const auto all_but = [&](std::int64_t other) { return std::max<std::int64_t>(ranks / other, 1); };
  if (parallel.tensor == kAllRanks) parallel.tensor = all_but(parallel.pipeline);
  if (parallel.pipeline == kAllRanks) parallel.pipeline = all_but(parallel.tensor);
  count_whole_batch(config, ranks);
  return run;
}

bool has_rate(const MachineCard& card, Precision precision) {
  if (precision == Precision::kFp32) return true;
  if (quantizes(precision)) return false;
  return (precision == Precision::kTf32 ? card.tf32_flops_per_s
                                        : card.flops_of(type_of(precision))) > 0;
}

void require_machine(const Run& asked, const MachineCard& card, int ranks) {
  require_simulated(asked, card, ranks);
  if (ranks > card.max_ranks()) {
    refuse_options(
        "--ranks", std::to_string(ranks),
        fmt::format("the card of {} has {}", card.name, counted(card.max_ranks(), "device")),
        "ask for fewer, or for a machine with a network");
  }
  if (asked.scheme() == SchemeKind::kDataParallel && ranks > card.node_ranks) {
    refuse_options(
        "--ranks", std::to_string(ranks),
        fmt::format("data-parallel stays in one process, and the card of {} has {} a node",
                    card.name, counted(card.node_ranks, "device")),
        "ask for fewer, or use another --scheme");
  }
  const Precision precision = asked.config.device.precision;
  if (has_rate(card, precision) || quantizes(precision)) return;
  refuse_options("--precision", std::string(name_of(precision)),
                 fmt::format("the card of {} has no rate of products for it", card.name),
                 fmt::format("use --precision fp32, or a card that states device.{}_flops_per_s",
                             precision == Precision::kTf32 ? "tf32" : "half"));
}

void require_prediction(const Run& asked, const MachineCard& card, const std::vector<int>& ranks) {
  const int max = *std::ranges::max_element(ranks);
  require_machine(asked, card, max);
  if (const auto& slow = asked.config.injected.slow_rank; slow && max == 1) {
    refuse_options("--slow-rank", fmt::format("{}:{}", slow->rank, slow->delay_ms),
                   "a single rank keeps no other waiting",
                   "use --delay-ms, or ask for more --ranks");
  }
  require(run_on(asked, card, 1));
  for (const int count : ranks) require(run_on(asked, card, count));
  if (max == 1) require(several_with_samples(asked, card));
}

bool can_run(const Run& asked, const MachineCard& card, int ranks) {
  return !refusal_of([&] { require_prediction(asked, card, {ranks}); });
}

int least_several(const Run& asked) {
  return static_cast<int>(std::max<std::int64_t>(2, least_per_copy(asked.config.parallel)));
}

std::vector<int> usual_ranks(const Run& asked, const MachineCard& card) {
  constexpr int kUsualRanks = 8;
  std::vector<int> usual = {1};
  const int least = least_several(asked);
  for (int ranks = least; ranks <= std::max(kUsualRanks, least); ranks *= 2) {
    if (can_run(asked, card, ranks)) usual.push_back(ranks);
  }
  return usual;
}

std::string_view noun_of(const Run& asked) {
  return asked.scheme() == SchemeKind::kDataParallel ? "device" : "rank";
}

std::string text_of(const Run& asked) {
  constexpr std::string_view kShown[] = {
      "dim", "depth", "layers", "batch-per-rank", "batch-size", "scheme", "global-batch-size"};
  const ModelConfig& model = asked.config.model;
  std::string text = fmt::format("{}, ", scheme_of(asked));
  text += model.layers.empty() ? fmt::format("{} x {}", model.dim.value_or(kDefaultDimCuda),
                                             model.depth.value_or(kDefaultDepth))
                               : text_of_numbers(model.layers);
  text += fmt::format(", batch {}", asked.batch_size());
  if (asked.config.parallel.batch_per_rank) text += fmt::format(" on each {}", noun_of(asked));
  TrainConfig others = asked.config;
  for (std::int64_t* const size : {&others.parallel.tensor, &others.parallel.pipeline}) {
    *size = std::max<std::int64_t>(*size, 1);  // as --scheme says
  }
  std::string options;
  for (const Option& option : options_to_predict()) {
    const std::optional<std::string> value = option.value.text(others);
    if (std::ranges::find(kShown, option.name) != std::end(kShown)) continue;
    if (value != option.value.text({}))
      options += options_text({{std::string(option.name), value.value_or("")}});
  }
  return options.empty() ? text : text + "," + options;
}

}  // namespace barestep
