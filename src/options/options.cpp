// Everything derived from the table, each by a loop over its rows.
#include "options/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/ops.h"

namespace barestep {

namespace {

using OrderedJson = nlohmann::ordered_json;

/// The value in JSON; a flag's `text` is empty if the flag is not set.
OrderedJson json_of_value(JsonKind kind, const std::string& text) {
  switch (kind) {
    case JsonKind::kBoolean:
      return !text.empty();
    case JsonKind::kString:
      return text;
    case JsonKind::kNumbers:
      return OrderedJson::parse("[" + text + "]");
    case JsonKind::kNumberOrString:
      if (!OrderedJson::accept(text)) return text;
      break;
    case JsonKind::kNumber:
    case JsonKind::kNumberOrNumbers:
      break;
  }
  return OrderedJson::parse(text.find(',') == std::string::npos ? text : "[" + text + "]");
}

}  // namespace

void refuse_options(std::string what, std::string value, std::string why, std::string remedy) {
  fail(ExitCode::kConfiguration,
       {std::move(what), std::move(value), std::move(why), std::move(remedy)});
}

std::vector<std::string_view> names_of_options(SchemeKind scheme) {
  std::vector<std::string_view> names;
  for (const Option& option : options_of(scheme)) names.push_back(option.name);
  return names;
}

std::string help_of(const Option& option) {
  std::string help = option.help;
  const std::string usual = option.value.text({}).value_or(option.unset);
  if (!is_flag(option) && !usual.empty()) help += fmt::format(" (default: {})", usual);
  if (!option.value.allowed.empty()) help += fmt::format(";\n{}", option.value.allowed);
  return help;
}

std::vector<std::string> arguments_of(const TrainConfig& config) {
  std::vector<std::string> arguments;
  for (const Option& option : options_of(config.parallel.scheme)) {
    const std::optional<std::string> text = option.value.text(config);
    if (!text || text == option.value.text({})) continue;
    arguments.push_back(fmt::format("--{}", option.name));
    if (!is_flag(option)) arguments.push_back(*text);
  }
  return arguments;
}

namespace {

OrderedJson configuration_of(const TrainConfig& config) {
  OrderedJson all = OrderedJson::object();
  for (const Option& option : options_of(config.parallel.scheme)) {
    const std::optional<std::string> text = option.value.text(config);
    if (!text && !is_flag(option)) continue;
    all[std::string(option.name)] = json_of_value(option.value.json, text.value_or(""));
  }
  return all;
}

std::string json_line_of(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

std::string json_of(const TrainConfig& config) {
  return json_line_of(configuration_of(config));
}

std::string options_without_json(const TrainConfig& config) {
  std::vector<std::string> names;
  const OrderedJson all = configuration_of(config);
  for (const auto& [name, value] : all.items()) {
    if (OrderedJson::parse(json_line_of(value)) != value) names.push_back("--" + name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string configuration_record(const TrainConfig& config) {
  return json_line_of({{"configuration", configuration_of(config)}});
}

namespace {

/// The option's value for a comparison, or only whether it is given.
std::pair<std::string, std::string> setting_of(const Option& option, const TrainConfig& config,
                                               bool by_value) {
  const std::optional<std::string> text = option.value.text(config);
  const bool is_given = text && (by_value || text != option.value.text({}));
  return {fmt::format("--{}", option.name), !is_given ? "not given" : by_value ? *text : "given"};
}

}  // namespace

std::vector<std::pair<std::string, std::string>> shared_settings(const TrainConfig& config) {
  std::vector<std::pair<std::string, std::string>> settings;
  for (const Option& option : options_of(SchemeKind::kDdp)) {
    if (option.agreement == Agreement::kNothing) continue;
    const bool by_value = option.agreement == Agreement::kValue && !is_flag(option);
    settings.push_back(setting_of(option, config, by_value));
  }
  return settings;
}

std::vector<std::pair<std::string, std::string>> deciding_settings(const TrainConfig& config) {
  std::vector<std::pair<std::string, std::string>> settings;
  // mlp_ddp has all options of any trainer that affect numbers.
  for (const Option& option : options_of(SchemeKind::kDdp)) {
    if (option.decides_numbers) settings.push_back(setting_of(option, config, !is_flag(option)));
  }
  return settings;
}

namespace {

/// Parses every value as if it had been typed.
void check_values(const TrainConfig& config) {
  TrainConfig read;
  for (const Option& option : options_of(config.parallel.scheme)) {
    const std::optional<std::string> text = option.value.text(config);
    const RawValue given{.where = fmt::format("--{}", option.name), .text = text.value_or("")};
    if (text) option.value.read(given, read);
  }
}

void check_dropout(const ModelConfig& model) {
  if (model.dropout == 0) return;
  if (widths_of(model, kDefaultDimCpu).size() > 2) return;
  refuse_options("--dropout", fmt::format("{}", model.dropout),
                 "nothing is dropped after the last layer, and the model has one layer",
                 "leave it out, or give more layers");
}

/// All rows of a step are rows of one tensor.
void check_transformer(const TrainConfig& config) {
  const ModelConfig& model = config.model;
  if (model.block != BlockKind::kTransformer) return;
  // The width may depend on the device; then the heads are checked with it.
  if (model.dim) static_cast<void>(attention_of(model, *model.dim));
  const std::int64_t length = model.length.value_or(kDefaultLength);
  std::int64_t batch = config.data.batch_size;
  for (const std::int64_t size : config.data.sweep) batch = std::max(batch, size);
  const std::int64_t rows = batch * config.training.accumulate * length;
  if (limits::kBatchSizes.contains(rows)) return;
  refuse_options("--length", std::to_string(length),
                 fmt::format("the samples of a step have {} rows together", rows),
                 fmt::format("a step has at most {}", limits::kBatchSizes.last));
}

void check_loss(const ModelConfig& model) {
  const std::int64_t outputs = widths_of(model, kDefaultDimCpu).back();
  if (model.loss == LossKind::kCrossEntropy && outputs == 1) {
    refuse_options(
        "--loss", "cross-entropy", "is 0 for every sample of one class, and the model has 1 output",
        "end --layers with the number of classes, or use --loss bce for one column of 0 and 1");
  }
  if (model.loss == LossKind::kBce && outputs != 1) {
    refuse_options("--loss", "bce",
                   fmt::format("has one column of 0 and 1, and the model has {} outputs", outputs),
                   "end --layers with 1, or use --loss cross-entropy");
  }
}

/// The names of the optimizers with some property: "adam or adamw".
std::string optimizers_with(bool OptimizerTraits::*something) {
  std::string names;
  for (const OptimizerKind kind : kValuesOf<OptimizerKind>) {
    if (!(traits_of(kind).*something)) continue;
    names += fmt::format("{}{}", names.empty() ? "" : " or ", name_of(kind));
  }
  return names;
}

void check_optimizer(const TrainConfig& config) {
  const OptimizerConfig& optimizer = config.optimizer;
  for (const Option& option : options_of(config.parallel.scheme)) {
    if (option.optimizers == nullptr || traits_of(optimizer.kind).*option.optimizers) continue;
    if (option.value.text(config) == option.value.text({})) continue;
    const std::string those = optimizers_with(option.optimizers);
    refuse_options(fmt::format("--{}", option.name), "",
                   fmt::format("only --optimizer {} has it", those),
                   fmt::format("leave it out, or use --optimizer {}", those));
  }
}

void check_schedule(const OptimizerConfig& optimizer) {
  const double lr = numbers_of(optimizer).lr;
  if (optimizer.lr_min.value_or(0) > lr) {
    refuse_options("--lr-min", fmt::format("{}", *optimizer.lr_min),
                   fmt::format("is above --lr, which is {}", lr),
                   "give a smaller one, or a larger --lr");
  }
}

/// The sums of quantized products must not overflow.
void check_sums(const TrainConfig& config) {
  const Precision precision = config.device.precision;
  if (!quantizes(precision)) return;
  const std::vector<std::int64_t> widths = widths_of(config.model, kDefaultDimCpu);
  const std::int64_t max = *std::max_element(widths.begin(), widths.end() - 1);
  if (max <= kMaxQuantizedInputs) return;
  refuse_options(
      "--precision", std::string(name_of(precision)),
      fmt::format("a layer has {} inputs, and sums of more than {} products may overflow", max,
                  kMaxQuantizedInputs),
      "use --precision fp32");
}

/// The same limit for chunks, whatever number of ranks has them.
void check_chunks(const TrainConfig& config, std::int64_t layers, std::int64_t step_rows) {
  const std::int64_t rows = config.training.chunk_rows.value_or(step_rows);
  const std::int64_t chunks = (step_rows + rows - 1) / rows;
  if (layers * chunks <= limits::kDepths.last) return;
  const std::int64_t most = std::max<std::int64_t>(limits::kDepths.last / layers, 1);
  refuse_options("--reproducible", std::to_string(rows),
                 fmt::format("{} layers in each of {} chunks make {} in a step", layers, chunks,
                             layers * chunks),
                 fmt::format("give at least {}", (step_rows + most - 1) / most));
}

/// A program has a node for each layer of each micro-step.
void check_micro_steps(const TrainConfig& config) {
  const std::int64_t accumulate = config.training.accumulate;
  const auto linears = static_cast<std::int64_t>(widths_of(config.model, 1).size()) - 1;
  if (linears * accumulate > limits::kDepths.last) {
    refuse_options("--accumulate", std::to_string(accumulate),
                   fmt::format("{} layers in each micro-step make {} in a step", linears,
                               linears * accumulate),
                   fmt::format("{} micro-steps fit, or a larger --batch-size",
                               limits::kDepths.last / linears));
  }
  std::int64_t batch = config.data.batch_size;
  for (const std::int64_t size : config.data.sweep) batch = std::max(batch, size);
  if (!limits::kBatchSizes.contains(batch * accumulate)) {
    refuse_options(
        "--accumulate", std::to_string(accumulate),
        fmt::format("{} samples in each micro-step make {} in a step", batch, batch * accumulate),
        fmt::format("a step has at most {}", limits::kBatchSizes.last));
  }
  check_chunks(config, linears, batch * accumulate);
}

/// Not more segments than layers.
void check_recomputation(const TrainConfig& config) {
  const std::int64_t segments = config.training.recompute;
  const auto layers = static_cast<std::int64_t>(widths_of(config.model, 1).size()) - 1;
  if (segments <= layers) return;
  refuse_options("--recompute", text_of_segments(segments),
                 fmt::format("the model has {} {}", layers, layers == 1 ? "layer" : "layers"),
                 fmt::format("give at most {}", layers));
}

void check_training(const TrainConfig& config) {
  const TrainingConfig& training = config.training;
  check_optimizer(config);
  check_schedule(config.optimizer);
  if (!training.epochs && !training.evaluate_only)
    warmup_of(training, training.steps.value_or(kDefaultSteps));
}

void check_parallel(const TrainConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  if (parallel.global_batch && parallel.batch_per_rank) {
    refuse_options("--batch-size", "", "cannot be combined with --global-batch-size",
                   "give one of the two");
  }
}

void check_devices(const DeviceConfig& device) {
  if (device.devices.empty()) return;
  const std::string all = fmt::format("{}", fmt::join(device.devices, ","));
  const auto on_cpu = std::ranges::count(device.devices, "cpu");
  if (on_cpu > 0 && on_cpu < std::ssize(device.devices)) {
    refuse_options("--devices", all, "names the CPU and GPUs", "give devices of one kind");
  }
  if (!limits::kDevices.contains(std::ssize(device.devices))) {
    refuse_options("--devices", all, fmt::format("names {} devices", device.devices.size()),
                   fmt::format("give at most {}", limits::kDevices.last));
  }
}

void check_device(const DeviceConfig& device) {
  check_devices(device);
  const bool on_cpu = device.devices.empty() ? device.device == "cpu" : device.devices[0] == "cpu";
  if (on_cpu) require_fit_for_cpu(device);
}

/// Where denormal numbers count as 0, eps must not be one: where a moment is 0 too, 0 / 0 is NaN.
/// On all devices, since `auto` may be the CPU.
void check_denormals(const TrainConfig& config) {
  const auto eps = static_cast<float>(config.optimizer.eps.value_or(1));
  if (config.device.denormals == Denormals::kKeep || std::fpclassify(eps) != FP_SUBNORMAL) return;
  refuse_options("--eps", text_of_number(*config.optimizer.eps),
                 "the CPU counts denormal numbers as 0",
                 "give 0 or at least 1.1754944e-38, or --denormals keep");
}

/// Of layers with these widths; a double, since the widths may be beyond any integer.
double parameters_of(std::span<const std::int64_t> widths) {
  double parameters = 0;
  for (std::size_t i = 1; i < widths.size(); ++i) {
    parameters += (static_cast<double>(widths[i - 1]) + 1) * static_cast<double>(widths[i]);
  }
  return parameters;
}

/// Of a step.
struct StepSize {
  double bytes = 0, flops = 0;
};

/// They must fit in 64 bits, with room to add a few of them.
constexpr double kMaxStepSize = 0x1p60;

/// An upper estimate: weights, gradients and two moments, and four activations per width.
StepSize step_size_of(const TrainConfig& config, std::int64_t batch_size) {
  auto batch = static_cast<double>(batch_size * config.training.accumulate);
  const std::vector<std::int64_t> widths = widths_of(config.model, kDefaultDimCuda);
  double parameters = parameters_of(widths);
  double activations = batch * std::accumulate(widths.begin(), widths.end(), 0.0);
  double flops_of_scores = 0;
  if (config.model.block == BlockKind::kTransformer) {
    const ModelConfig& model = config.model;
    const AttentionShape shape{.heads = heads_of(model, widths.front()),
                               .length = model.length.value_or(kDefaultLength),
                               .form = model.attention};
    const auto dim = static_cast<double>(widths.front());
    const auto ffn = static_cast<double>(ffn_of(model, widths.front()));
    const auto length = static_cast<double>(shape.length);
    const auto blocks = static_cast<double>(widths.size() - 1);
    batch *= length;
    parameters = blocks * (4 * dim * dim + 2 * dim * ffn + 13 * dim + ffn);
    activations = batch * blocks * (8 * dim + 2 * ffn + 2 * static_cast<double>(shape.kept_cols()));
    flops_of_scores = 14 * batch * blocks * dim * length;
  }
  return {.bytes = 16 * parameters + 16 * activations,
          .flops = 6 * batch * parameters + flops_of_scores};
}

void check_size(const TrainConfig& config, std::int64_t batch_size) {
  if (is_countable(config, batch_size)) return;
  const auto [bytes, flops] = step_size_of(config, batch_size);
  const bool memory = bytes > kMaxStepSize;
  refuse_options("model", "",
                 fmt::format("a step takes {:.1e} {}, more than barestep counts to ({:.1e})",
                             memory ? bytes : flops, memory ? "bytes" : "flops", kMaxStepSize),
                 "make --dim, --depth, --layers or --batch-size smaller");
}

}  // namespace

bool is_countable(const TrainConfig& config, std::int64_t batch_size) {
  const auto [bytes, flops] = step_size_of(config, batch_size);
  return bytes <= kMaxStepSize && flops <= kMaxStepSize;
}

void validate(const TrainConfig& config) {
  check_values(config);
  refuse_conflicts(config);
  check_dropout(config.model);
  check_transformer(config);
  check_loss(config.model);
  check_training(config);
  check_device(config.device);
  check_denormals(config);
  check_parallel(config);
  check_sums(config);
  check_micro_steps(config);
  check_recomputation(config);
  check_size(config, config.data.batch_size);
  for (const std::int64_t size : config.data.sweep) check_size(config, size);
}

bool computes_own_products(const DeviceConfig& device) {
  return device.gemm == GemmProvider::kAuto || device.gemm == GemmProvider::kOwn;
}

bool updates_agree(const TrainConfig& config, DeviceKind kind) {
  return kind == DeviceKind::kCpu && config.device.precision == Precision::kFp32 &&
         computes_own_products(config.device) && config.training.accumulate == 1 &&
         !config.training.clip_norm;
}

UpdateChoice choose_update(const TrainConfig& config, DeviceKind kind) {
  // The limits were measured: bench/results/*/steps_and_updates.txt. On a GPU, 128 rows are the
  // most that were: bench/results/nvidia-h200/runs.txt (8192 x 2, fused instead of separate:
  // fp32 2.41 and 2.86 ms, tf32 1.47 and 1.50). Adam's 16 bytes a parameter must exceed the caches
  // of a CPU, or there is no memory time to hide; smaller models were not measured on a GPU. And
  // the library's products are faster than the update's own where a batch has many rows.
  const bool on_gpu = kind == DeviceKind::kCuda;
  constexpr double kMinParameters = 0x1p21;
  const std::int64_t max_rows = on_gpu ? 128 : 256;
  const TrainingConfig& training = config.training;
  const bool exchanges_gradients =
      config.parallel.scheme == SchemeKind::kDataParallel ||
      (has_ranks(config.parallel.scheme) && config.parallel.scheme != SchemeKind::kFactor &&
       config.parallel.sync_every == 1);
  const bool is_others_product = !computes_own_products(config.device);
  const std::pair<bool, std::string_view> needs_separate[] = {
      {exchanges_gradients, "gradients are exchanged"},
      {config.output.profile, "--profile times gradients and update separately"},
      {is_others_product, "the fused update does not use the products that --gemm selects"},
      {config.device.precision == Precision::kFp16, "loss scaling looks at stored gradients"},
      {!on_gpu && config.device.precision != Precision::kFp32,
       "the fused update is faster in fp32 alone"},
      {config.model.block == BlockKind::kTransformer, "the gradients of norms are no products"},
      {!traits_of(config.optimizer.kind).has_fused_update,
       "only Adam and AdamW have a fused update"},
      {config.optimizer.amsgrad, "--amsgrad keeps a maximum"},
      {!training.zero_grad, "--no-zero-grad adds up gradients"},
      {training.staleness > 0, "--staleness applies gradients later"},
      {training.clip_norm.has_value(), "--clip-norm needs all gradients first"},
      {training.accumulate > 1, "--accumulate adds up gradients"},
      {training.chunk_rows.has_value(), "--reproducible adds up gradients"},
      {training.recompute != 1, "--recompute discards activations"},
      {parameters_of(widths_of(config.model, kDefaultDimCpu)) < kMinParameters,
       "a model of fewer than 2,097,152 parameters stays in the caches"}};
  for (const auto& [holds, why] : needs_separate) {
    if (holds) return {Update::kSeparate, why};
  }
  UpdateChoice choice{Update::kFused, "Adam runs beside the products of the weight gradients"};
  if (config.data.batch_size > max_rows) {
    choice = {Update::kSeparate,
              on_gpu ? "beyond 128 rows it was not measured on a GPU"
                     : "beyond 256 rows the products take longer than Adam's memory accesses"};
  }
  choice.is_to_be_measured =
      updates_agree(config, kind) && !config.device.graph && config.parallel.sync_every == 1;
  return choice;
}

}  // namespace barestep
