// The table of options. A name has several rows if its value differs between programs.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/units.h"
#include "options/options.h"

namespace barestep {
namespace {

// The kinds of values: how a member of the configuration is parsed from text and written as text.

/// The section of `Config` that contains a member.
template <class Section, class Config>
auto& section_of(Config& config) {
  if constexpr (std::is_same_v<Section, ModelConfig>) {
    return config.model;
  } else if constexpr (std::is_same_v<Section, DataConfig>) {
    return config.data;
  } else if constexpr (std::is_same_v<Section, TrainingConfig>) {
    return config.training;
  } else if constexpr (std::is_same_v<Section, OptimizerConfig>) {
    return config.optimizer;
  } else if constexpr (std::is_same_v<Section, DeviceConfig>) {
    return config.device;
  } else if constexpr (std::is_same_v<Section, ParallelConfig>) {
    return config.parallel;
  } else if constexpr (std::is_same_v<Section, InjectedConfig>) {
    return config.injected;
  } else if constexpr (std::is_same_v<Section, CheckpointConfig>) {
    return config.checkpoint;
  } else {
    return config.output;
  }
}

/// A member that may be unset is an optional, or is empty if unset.
template <class T>
struct Settable {
  using Type = T;
  static const T* value_of(const T& member) {
    if constexpr (requires { member.empty(); }) return member.empty() ? nullptr : &member;
    return &member;
  }
};
template <class T>
struct Settable<std::optional<T>> {
  using Type = T;
  static const T* value_of(const std::optional<T>& member) { return member ? &*member : nullptr; }
};

/// Any member, with functions to read and write its type.
template <class Section, class Member, class Read, class Write>
OptionValue value_at(Member Section::*member, JsonKind json, std::string argument,
                     std::string allowed, Read read, Write write) {
  return {json, std::move(argument), std::move(allowed),
          [=](const RawValue& given, TrainConfig& config) {
            section_of<Section>(config).*member = read(given);
          },
          [=](const TrainConfig& config) -> std::optional<std::string> {
            const auto* const value =
                Settable<Member>::value_of(section_of<Section>(config).*member);
            if (value == nullptr) return std::nullopt;
            return write(*value);
          }};
}

template <class Section, class Member>
OptionValue number(Member Section::*member, const Range& range, std::string argument = "N") {
  using Whole = typename Settable<Member>::Type;
  return value_at(
      member, JsonKind::kNumber, std::move(argument), text_of(range),
      [=](const RawValue& given) { return static_cast<Whole>(whole_number(given, range)); },
      [](std::int64_t value) { return text_of_number(value); });
}

template <class Section, class Member>
OptionValue number(Member Section::*member, const RealRange& range, std::string argument = "X") {
  return value_at(
      member, JsonKind::kNumber, std::move(argument), text_of(range),
      [=](const RawValue& given) { return real_number(given, range); },
      [](double value) { return text_of_number(value); });
}

/// Presence sets the member to `given`: true for "--graph", false for "--no-pin".
template <class Section>
OptionValue flag(bool Section::*member, bool given = true) {
  return {JsonKind::kBoolean, "", "",
          [=](const RawValue& text, TrainConfig& config) {
            no_value(text);
            section_of<Section>(config).*member = given;
          },
          [=](const TrainConfig& config) -> std::optional<std::string> {
            if (section_of<Section>(config).*member != given) return std::nullopt;
            return "true";
          }};
}

/// A list of values of an enum, by name; an empty list means all.
template <class Section, class Member, class Enum = typename Settable<Member>::Type>
OptionValue one_of(Member Section::*member, std::vector<Enum> values = {},
                   std::string argument = "") {
  std::vector<std::string_view> names;
  if (values.empty()) values.assign(kValuesOf<Enum>.begin(), kValuesOf<Enum>.end());
  for (const Enum value : values) names.push_back(name_of(value));
  if (argument.empty()) argument = joined(names, "|");
  return value_at(
      member, JsonKind::kString, std::move(argument), "",
      [=](const RawValue& given) { return values[choice(given, names)]; },
      [](Enum value) { return std::string(name_of(value)); });
}

/// A bool with two names, the default's first.
template <class Section>
OptionValue either(bool Section::*member, std::string_view usual, std::string_view other) {
  const TrainConfig defaults;
  const bool is_usual = section_of<Section>(defaults).*member;
  const std::vector<std::string_view> names = {usual, other};
  return value_at(
      member, JsonKind::kString, joined(names, "|"), "",
      [=](const RawValue& given) { return (choice(given, names) == 0) == is_usual; },
      [=](bool value) { return std::string(value == is_usual ? usual : other); });
}

template <class Section>
OptionValue file(std::filesystem::path Section::*member, std::string argument = "FILE") {
  return value_at(member, JsonKind::kString, std::move(argument), "", &file_path,
                  [](const std::filesystem::path& path) { return path.string(); });
}

using Table = std::vector<Option>;

constexpr SchemeKind kSingle = SchemeKind::kSingle;
constexpr SchemeKind kDp = SchemeKind::kDataParallel;
constexpr SchemeKind kDdp = SchemeKind::kDdp;

// Options that may differ between ranks.
constexpr Agreement kNotShared = Agreement::kNothing;

OptionValue layers() {
  return value_at(
      &ModelConfig::layers, JsonKind::kNumbers, "W0,W1,...",
      fmt::format("{} to {} widths from {} to {}", limits::kDepths.first + 1,
                  limits::kDepths.last + 1, limits::kWidths.first, limits::kWidths.last),
      &widths, &text_of_numbers);
}

OptionValue tuning() {
  return {JsonKind::kString, "on|off|FILE", "",
          [](const RawValue& given, TrainConfig& c) {
            c.device.autotunes = given.text != "off";
            const bool is_file = c.device.autotunes && given.text != "on";
            c.device.autotune = is_file ? file_path(given) : std::filesystem::path();
          },
          [](const TrainConfig& c) -> std::optional<std::string> {
            if (!c.device.autotunes) return "off";
            if (c.device.autotune.empty()) return std::nullopt;
            return c.device.autotune.string();
          }};
}

OptionValue data_files() {
  return {JsonKind::kString, "randn|teacher|idx:X,Y|npy:X,Y|safetensors:F", "",
          [](const RawValue& given, TrainConfig& c) { data_source(given, c.data); },
          [](const TrainConfig& c) -> std::optional<std::string> {
            std::string text(name_of(c.data.kind));
            if (c.data.teacher) return "teacher";
            if (c.data.kind == DataKind::kRandn) return text;
            text += ":" + c.data.x.string();
            if (c.data.kind != DataKind::kSafetensors) text += "," + c.data.y.string();
            return text;
          }};
}

/// A batch size, or several to run one after another.
OptionValue sweep() {
  OptionValue value = number(&DataConfig::batch_size, limits::kBatchSizes);
  value.json = JsonKind::kNumberOrNumbers;
  value.argument = "N|N1,N2,...";
  value.read = [](const RawValue& given, TrainConfig& c) { batch_sizes(given, c.data); };
  value.text = [one = value.text](const TrainConfig& c) {
    return c.data.sweep.empty() ? one(c) : text_of_numbers(c.data.sweep);
  };
  return value;
}

// Ranks have two options for one batch size. This one covers all ranks and applies unless the other
// was given.
OptionValue batch_of_all_ranks() {
  OptionValue value = number(&DataConfig::batch_size, limits::kBatchSizes);
  value.read = [read = value.read](const RawValue& given, TrainConfig& c) {
    read(given, c);
    c.parallel.global_batch = true;
  };
  value.text = [text = value.text](const TrainConfig& c) {
    return c.parallel.batch_per_rank && !c.parallel.global_batch ? std::nullopt : text(c);
  };
  return value;
}

OptionValue batch_of_each_rank() {
  OptionValue value = number(&DataConfig::batch_size, limits::kBatchSizes);
  value.read = [read = value.read](const RawValue& given, TrainConfig& c) {
    read(given, c);
    c.parallel.batch_per_rank = true;
  };
  value.text = [text = value.text](const TrainConfig& c) {
    return c.parallel.batch_per_rank ? text(c) : std::nullopt;
  };
  return value;
}

OptionValue betas() {
  return {JsonKind::kNumbers, "B1,B2", "two numbers of at least 0 and below 1",
          [](const RawValue& given, TrainConfig& c) {
            std::tie(c.optimizer.beta1, c.optimizer.beta2) = two_shares(given);
          },
          [](const TrainConfig& c) -> std::optional<std::string> {
            if (!c.optimizer.beta1 && !c.optimizer.beta2) return std::nullopt;
            const OptimizerNumbers numbers = numbers_of(c.optimizer);
            return fmt::format("{},{}", numbers.beta1, numbers.beta2);
          }};
}

/// The schemes of a program. Where there is one, it is never given.
OptionValue schemes(SchemeKind usual) {
  const TrainingProgram& program = program_of(usual);
  std::vector<SchemeKind> own;
  std::ranges::copy_if(kValuesOf<SchemeKind>, std::back_inserter(own),
                       [&](SchemeKind each) { return program.has(each); });
  OptionValue value = one_of(&ParallelConfig::scheme, own);
  value.read = [&program, read = value.read](const RawValue& given, TrainConfig& c) {
    for (const SchemeKind other : kValuesOf<SchemeKind>) {
      if (given.text != name_of(other) || program.has(other)) continue;
      const std::string_view its = program_of(other).name;
      fail(given.code,
           {given.where, given.text, fmt::format("{} shares steps so, not {}", its, program.name),
            fmt::format("start {}", its)});
    }
    read(given, c);
  };
  if (own.size() == 1) {
    value.text = [](const TrainConfig&) { return std::nullopt; };
  }
  return value;
}

Table transformer_options() {
  return {
      {.name = "heads",
       .help = "heads of attention; they divide --dim",
       .value = number(&ModelConfig::heads, limits::kHeads),
       .unset = fmt::format("as many as are {} wide, or 1", kDefaultHeadWidth),
       .decides_numbers = true},
      {.name = "length",
       .help = "rows of a sample, which attend to each other",
       .value = number(&ModelConfig::length, limits::kLengths),
       .unset = text_of_number(kDefaultLength),
       .decides_numbers = true},
      {.name = "ffn",
       .help = "width between the two linear layers of a transformer block",
       .value = number(&ModelConfig::ffn, limits::kWidths),
       .unset = "four times --dim",
       .decides_numbers = true},
      {.name = "causal",
       .help = "a row attends only to itself and to those before it",
       .value = flag(&ModelConfig::causal),
       .decides_numbers = true},
      {.name = "attention",
       .help = "flash computes the scores of attention in tiles and never stores them; standard "
               "stores those of every pair of rows",
       .value = one_of(&ModelConfig::attention)},
  };
}

Table model_options() {
  return {
      {.name = "block",
       .help = "what the model is a chain of: Linear layers, or transformer blocks, which "
               "normalize before attention and before two linear layers with GELU between them, as "
               "torch.nn.TransformerEncoderLayer with norm_first; a sample is then a sequence of "
               "--length rows of --dim numbers",
       .value = one_of(&ModelConfig::block),
       .decides_numbers = true},
      {.name = "dim",
       .help = "width of every layer",
       .value = number(&ModelConfig::dim, limits::kWidths),
       .unset = fmt::format("{} on the CPU, {} on a GPU", kDefaultDimCpu, kDefaultDimCuda),
       .replaces = {"layers"}},
      {.name = "depth",
       .help = "number of Linear layers or of transformer blocks",
       .value = number(&ModelConfig::depth, limits::kDepths),
       .unset = text_of_number(kDefaultDepth),
       .replaces = {"layers"}},
      {.name = "layers",
       .help = "widths from input to output, instead of --dim and --depth",
       .value = layers(),
       .replaces = {"dim", "depth"}},
      {.name = "activation",
       .help = "activation after each Linear",
       .value = one_of(&ModelConfig::activation),
       .decides_numbers = true},
      {.name = "no-last-relu",
       .help = "no activation after the last Linear",
       .value = flag(&ModelConfig::last_relu, false),
       .decides_numbers = true},
      {.name = "dropout",
       .help =
           "probability that an activation is set to 0 in training, as in torch.nn.Dropout; after "
           "every activation except that of the last Linear, with --no-last-relu after every one",
       .value = number(&ModelConfig::dropout, limits::kShares, "P"),
       .decides_numbers = true},
      {.name = "loss",
       .help = "mse, l1 and huber for numeric targets, cross-entropy for class labels, bce for one "
               "column of 0 and 1",
       .value = one_of(&ModelConfig::loss),
       .decides_numbers = true},
      {.name = "label-smoothing",
       .help = "share of a cross-entropy label that is spread evenly over all classes",
       .value = number(&ModelConfig::label_smoothing, limits::kShares),
       .decides_numbers = true},
  };
}

Table data_options() {
  return {
      {.name = "data",
       .help = "fresh random numbers in each step; teacher: with the targets of a fixed random "
               "model of two layers, which can be learned; or files of samples and their labels or "
               "targets: idx (plain or .gz), npy, or the tensors x and y of a safetensors file; "
               "several files by a pattern, such as npy:x-*.npy,y-*.npy",
       .value = data_files(),
       .agreement = Agreement::kWhetherGiven},  // files are compared by content
      {.name = "teacher-noise",
       .help = "standard deviation of the random numbers that are added to the targets of --data "
               "teacher",
       .value = number(&DataConfig::teacher_noise, limits::kNotNegative),
       .decides_numbers = true},
      {.name = "workers",
       .help = "threads that load batches ahead; 0 loads them inside the step; for files",
       .value = number(&DataConfig::workers, limits::kWorkers),
       .agreement = kNotShared},
      {.name = "prefetch",
       .help = "batches that each worker may load ahead",
       .value = number(&DataConfig::prefetch, limits::kPrefetches),
       .agreement = kNotShared},
      {.name = "no-pin",
       .help = "copy batches from pageable memory instead of page-locked memory",
       .value = flag(&DataConfig::pin, false),
       .agreement = kNotShared},
      {.name = "no-shuffle",
       .help = "read the samples of files in their order in every epoch",
       .value = flag(&DataConfig::shuffle, false),
       .decides_numbers = true},
      {.name = "input-scale",
       .help = "divide the features of files by X, and targets that are images",
       .value = number(&DataConfig::input_scale, limits::kPositive),
       .unset = "255 for images of bytes in idx files, else 1",
       .decides_numbers = true},
      {.name = "standardize",
       .help = "scale every feature to mean 0 and standard deviation 1 over the training set; "
               "targets are unchanged",
       .value = flag(&DataConfig::standardize),
       .decides_numbers = true},
      {.name = "drop-last",
       .help = "leave out the smaller last batch of an epoch",
       .value = flag(&DataConfig::drop_last),
       .decides_numbers = true},
      {.name = "test-split",
       .help = "share of the samples, taken from the end, to test with",
       .value = number(&DataConfig::test_split, limits::kTestSplits, "SHARE"),
       .decides_numbers = true},
  };
}

Table batch_options() {
  return {
      {.name = "batch-size",
       .help = "samples in a step; a list makes one run for each and ends with a table",
       .value = sweep(),
       .programs = {kSingle}},
      {.name = "batch-size",
       .help = "samples in a step, over all devices",
       .value = number(&DataConfig::batch_size, limits::kBatchSizes),
       .programs = {kDp}},
      {.name = "global-batch-size",
       .help = "samples in a step, over all ranks; if they do not divide evenly, the first ranks "
               "take one more",
       .value = batch_of_all_ranks(),
       .replaces = {"batch-size"},
       .programs = {kDdp}},
      {.name = "batch-size",
       .help = "samples in a step of each rank, instead of --global-batch-size",
       .value = batch_of_each_rank(),
       .replaces = {"global-batch-size"},
       .programs = {kDdp}},
      {.name = "data-seeding",
       .help = "random data: global draws one batch and divides its rows among the ranks; per-rank "
               "draws a batch on each rank, seeded with --seed plus the rank",
       .value = either(&ParallelConfig::seed_per_rank, "global", "per-rank"),
       .programs = {kDdp},
       .decides_numbers = true},
  };
}

Table run_options() {
  return {
      {.name = "steps",
       .help = "training steps",
       .value = number(&TrainingConfig::steps, limits::kCounts),
       .unset = text_of_number(kDefaultSteps),
       .replaces = {"epochs"}},
      {.name = "epochs",
       .help = "passes over the data, instead of --steps; needs files",
       .value = number(&TrainingConfig::epochs, limits::kCounts),
       .replaces = {"steps"}},
      {.name = "early-stop",
       .help = "stop after this many evaluations in a row without a smaller test loss",
       .value = number(&TrainingConfig::early_stop, limits::kCounts)},
      {.name = "warmup",
       .help = "first steps, left out of the summary",
       .value = number(&TrainingConfig::warmup, limits::kWarmups),
       .unset = fmt::format("{}, fewer in a short run", kDefaultWarmup)},
      {.name = "seed",
       .help = "seed of weights and data; gives PyTorch's numbers",
       .value = value_at(&TrainingConfig::seed, JsonKind::kNumber, "N", "any 64-bit integer",
                         &seed_number, [](std::uint64_t seed) { return fmt::format("{}", seed); }),
       .decides_numbers = true},
      {.name = "log-every",
       .help = "print every Nth step, and wait only for these before queueing the next",
       .value = number(&TrainingConfig::log_every, limits::kCounts)},
  };
}

Table optimizer_options() {
  return {
      {.name = "optimizer",
       .help = "as in torch.optim, rmsprop with alpha 0.99; lion as in its paper",
       .value = one_of(&OptimizerConfig::kind),
       .decides_numbers = true},
      {.name = "betas",
       .help = "decay of Adam's two moments; Lion's factor for the update and for its moment",
       .value = betas(),
       .unset = "0.9,0.999, with lion 0.9,0.99",
       .optimizers = &OptimizerTraits::has_betas,
       .decides_numbers = true},
      {.name = "eps",
       .help = "adam, adamw, rmsprop, adagrad: added to the denominator",
       .value = number(&OptimizerConfig::eps, limits::kNotNegative),
       .unset = "1e-08, with adagrad 1e-10",
       .optimizers = &OptimizerTraits::has_eps,
       .decides_numbers = true},
      {.name = "amsgrad",
       .help = "Adam with the maximum of the second moments so far",
       .value = flag(&OptimizerConfig::amsgrad),
       .optimizers = &OptimizerTraits::has_amsgrad,
       .decides_numbers = true},
      {.name = "momentum",
       .help = "sgd (without dampening) and rmsprop: momentum",
       .value = number(&OptimizerConfig::momentum, limits::kShares),
       .optimizers = &OptimizerTraits::has_momentum,
       .decides_numbers = true},
      {.name = "nesterov",
       .help = "sgd: Nesterov's momentum",
       .value = flag(&OptimizerConfig::nesterov),
       .optimizers = &OptimizerTraits::has_nesterov,
       .decides_numbers = true},
      {.name = "weight-decay",
       .help = "adamw and lion: decoupled weight decay; others: L2 penalty added to the gradient",
       .value = number(&OptimizerConfig::weight_decay, limits::kNotNegative),
       .unset = "0, with adamw 0.01",
       .decides_numbers = true},
  };
}

Table learning_rate_options() {
  return {
      {.name = "lr",
       .help = "learning rate",
       .value = number(&OptimizerConfig::lr, limits::kPositive),
       .unset = "0.001, with rmsprop and adagrad 0.01"},
      {.name = "lr-warmup",
       .help = "steps over which the learning rate grows linearly to its value",
       .value = number(&OptimizerConfig::lr_warmup, limits::kWarmups),
       .decides_numbers = true},
      {.name = "lr-schedule",
       .help = "learning rate after --lr-warmup: linear and cosine end at --lr-min, step "
               "multiplies it by --lr-gamma every --lr-step steps; as PyTorch's LinearLR, "
               "CosineAnnealingLR and StepLR",
       .value = one_of(&OptimizerConfig::lr_schedule),
       .decides_numbers = true},
      {.name = "lr-min",
       .help = "learning rate at the end of linear and cosine",
       .value = number(&OptimizerConfig::lr_min, limits::kNotNegative),
       .unset = "0",
       .decides_numbers = true},
      {.name = "lr-step",
       .help = "steps between two reductions with --lr-schedule step",
       .value = number(&OptimizerConfig::lr_step, limits::kCounts),
       .unset = text_of_number(kDefaultLrStep),
       .decides_numbers = true},
      {.name = "lr-gamma",
       .help = "factor of --lr-schedule step",
       .value = number(&OptimizerConfig::lr_gamma, limits::kPositive),
       .unset = text_of_number(kDefaultLrGamma),
       .decides_numbers = true},
      {.name = "lr-scale",
       .help = "linear: multiply the learning rate by the number of ranks (1 on one device)",
       .value = one_of(&OptimizerConfig::lr_scale)},
  };
}

Table gradient_options() {
  const std::vector<Update> of_one = {Update::kAuto, Update::kSeparate, Update::kFused};
  return {
      {.name = "accumulate",
       .help = "micro-steps of --batch-size samples whose gradients add up to one step; keeps the "
               "activations of one micro-step, or of all with --update fused",
       .value = number(&TrainingConfig::accumulate, limits::kMicroSteps)},
      {.name = "reproducible",
       .help = "the same bits on any number of ranks and for any --accumulate: the gradients of "
               "every ROWS samples of a step are computed alone and added up in one order",
       .value = number(&TrainingConfig::chunk_rows, limits::kBatchSizes, "ROWS"),
       .unset = "each rank adds up its own samples first",
       .programs = {kSingle, kDdp},
       .decides_numbers = true},
      {.name = "recompute",
       .help =
           "cut the layers into S segments, as torch.utils.checkpoint.checkpoint_sequential does: "
           "backward recomputes the outputs inside each segment but the last, so that segments "
           "share memory; auto, with --plan and --memory, names the cheapest S that fits",
       .value =
           value_at(&TrainingConfig::recompute, JsonKind::kNumberOrString, "S|auto",
                    text_of(limits::kDepths) + ", or auto", &segment_count, &text_of_segments)},
      {.name = "no-zero-grad",
       .help = "do not clear gradients: they add up from step to step",
       .value = flag(&TrainingConfig::zero_grad, false),
       .decides_numbers = true},
      {.name = "staleness",
       .help = "apply the gradients of each step N steps later, so that ranks can reduce them "
               "beside the next step; the last N are not applied",
       .value = number(&TrainingConfig::staleness, limits::kDelayedSteps),
       .programs = {kSingle, kDdp},
       .decides_numbers = true},
      {.name = "clip-norm",
       .help = "scale gradients down if their total norm is larger, as "
               "torch.nn.utils.clip_grad_norm_ does",
       .value = number(&TrainingConfig::clip_norm, limits::kPositive),
       .unset = "never",
       .decides_numbers = true},
      {.name = "update",
       .help = "fused: Adam runs inside the weight gradient, which is never stored; separate: "
               "gradients first, then Adam; auto: fused on the CPU where it is faster and no "
               "gradient has to be stored",
       .value = one_of(&TrainingConfig::update, of_one),
       .programs = {kSingle}},
      {.name = "update",
       .help = "as in mlp_single; fused is refused, since devices exchange the gradients it does "
               "not store",
       .value = one_of(&TrainingConfig::update, of_one),
       .programs = {kDp}},
  };
}

Table device_options() {
  return {
      {.name = "device",
       .help = "where to train; auto takes a GPU if there is one",
       .value = value_at(&DeviceConfig::device, JsonKind::kString, "auto|cpu|cuda|cuda:N", "",
                         &device_name, [](const std::string& name) { return name; }),
       .agreement = kNotShared},
      {.name = "threads",
       .help = "threads of the CPU device",
       .value = number(&DeviceConfig::threads, limits::kThreads),
       .unset = "OMP_NUM_THREADS, else one for each CPU this process may use, at most "
                "SLURM_CPUS_PER_TASK and OMP_THREAD_LIMIT",
       .agreement = kNotShared},
      {.name = "affinity",
       .help = "bind threads to cores, next to each other (compact) or far apart (spread), and a "
               "process with a GPU to the CPUs near it; ranks and devices divide the cores",
       .value = one_of(&DeviceConfig::affinity),
       .agreement = kNotShared},
      {.name = "denormals",
       .help = "denormal numbers on the CPU, those below 1.2e-38: flush takes them as 0; keep "
               "computes with them, as PyTorch does by default, which slows steps down when the "
               "moments of units that no longer learn have decayed",
       .value = one_of(&DeviceConfig::denormals)},
      {.name = "gemm",
       .help = "matrix products on the CPU: our own, those of a library, or the plain loops that "
               "ours equal in every bit; auto takes ours, and oneDNN's in 16 bits where the "
               "processor has instructions for them",
       .value = one_of(&DeviceConfig::gemm),
       .agreement = kNotShared},  // ranks compare their libraries instead
      {.name = "instructions",
       .help = "the most that the CPU's products, updates and attention may use; the bits are the "
               "same with all",
       .value = one_of(&DeviceConfig::instructions),
       .agreement = kNotShared},
      {.name = "fusion",
       .help = "compute bias and activation inside the forward product, and their gradients in one "
               "op, or in the loss's",
       .value = either(&DeviceConfig::fusion, "on", "off")},
  };
}

/// Of products, and how a device runs a step.
Table product_options() {
  return {
      {.name = "precision",
       .help = "precision of matrix products; tf32 (GPU only) is faster and less exact; bf16 and "
               "fp16 as in torch.autocast: inputs and outputs of products have 16 bits, weights "
               "and optimizer state stay fp32; int8 only with --evaluate-only (not in mlp_dp), "
               "which then evaluates in fp32 too",
       .value = one_of(&DeviceConfig::precision),
       .decides_numbers = true},
      {.name = "loss-scale",
       .help = "fp16: multiply the loss to keep gradients in range, as torch.amp.GradScaler does; "
               "dynamic starts at INIT, X is fixed",
       .value = value_at(&TrainingConfig::loss_scale, JsonKind::kNumberOrString, "dynamic[:INIT]|X",
                         "", &loss_scaling, &text_of_loss_scaling),
       .unset = "dynamic:65536 with --precision fp16",
       .decides_numbers = true},
      {.name = "loss-scale-window",
       .help = "steps without an overflow after which a dynamic loss scale doubles",
       .value = number(&TrainingConfig::loss_scale_window, limits::kCounts),
       .unset = "2000",
       .decides_numbers = true},
      {.name = "graph",
       .help = "capture a step as a graph and replay it",
       .value = flag(&DeviceConfig::graph)},
      {.name = "autotune",
       .help =
           "on: time a GPU's algorithms for products above 20 MFLOP once and keep the choices; "
           "FILE: time all products and keep the choices in FILE; off: take the library's first",
       .value = tuning(),
       .unset = "on",
       .agreement = kNotShared},
  };
}

/// Of mlp_dp; and the only scheme of a program with one.
Table spread_options() {
  return {
      {.name = "scheme",
       .help = "one device alone; mlp_dp and mlp_ddp have the others",
       .value = schemes(kSingle),
       .unset = std::string(name_of(kSingle)),
       .programs = {kSingle}},
      {.name = "scheme",
       .help = "device 0 has the model, as in nn.DataParallel; mlp_ddp has the others",
       .value = schemes(kDp),
       .unset = std::string(name_of(kDp))},
      {.name = "devices",
       .help = "devices that share each step, cpu or cuda:N; a name given twice counts as two",
       .value = value_at(&DeviceConfig::devices, JsonKind::kString, "D0,D1,...", "", &device_names,
                         [](const std::vector<std::string>& names) { return joined(names, ","); }),
       .unset = "all GPUs; without any, two CPU devices",
       .replaces = {"device"}},
      {.name = "transport",
       .help = "how parameters and gradients travel: NCCL between GPUs that are each named once, "
               "or peer copies and our own sums; auto takes NCCL where possible",
       .value = one_of(&ParallelConfig::transport,
                       {TransportKind::kAuto, TransportKind::kNccl, TransportKind::kPeer})},
      {.name = "show-split",
       .help = "print the rows of each device in each step",
       .value = flag(&OutputConfig::show_split)},
  };
}

/// Stages are devices of mlp_dp, or ranks of mlp_ddp.
Table pipeline_options() {
  return {
      {.name = "pipeline",
       .help = "cut the model's layers into stages, each on a device or rank of its own; "
               "micro-batches pass through them",
       .value = number(&ParallelConfig::pipeline, limits::kMeshSizes)},
      {.name = "schedule",
       .help = "the order of passes in a stage: 1f1b keeps the activations of at most as many "
               "micro-batches as stages; gpipe runs all forward passes first; naive has one "
               "micro-batch in flight; zb-h1 is 1f1b that computes the gradients of weights while "
               "a stage would wait",
       .value = one_of(&ParallelConfig::schedule)},
      {.name = "micro-batches",
       .help = "parts of each batch that pass through a pipeline, cut as torch.chunk does",
       .value = number(&ParallelConfig::micro_batches, limits::kMicroSteps),
       .unset = "as many as stages; 1 with --schedule naive"},
  };
}

/// Who updates weights, and when ranks hear of each other's.
Table update_options_of_ranks() {
  return {
      {.name = "servers",
       .help = "the first N ranks are parameter servers, beside their own share of the batch; "
               "buckets are divided among them",
       .value = number(&ParallelConfig::servers, limits::kMeshSizes)},
      {.name = "server-reduce",
       .help = "star: a server receives from every rank and sends to each; tree: by the reduce and "
               "broadcast of the transport",
       .value = one_of(&ParallelConfig::server_reduce)},
      {.name = "sync-every",
       .help = "above 1, local SGD: each rank updates its own weights, and after every N steps, "
               "and before evaluations, ranks continue with their average",
       .value = number(&ParallelConfig::sync_every, limits::kCounts),
       .decides_numbers = true},
      {.name = "outer",
       .help = "diloco: move from the last average toward the new one by SGD with learning rate "
               "0.7 and Nesterov momentum 0.9",
       .value = one_of(&ParallelConfig::outer),
       .decides_numbers = true},
  };
}

Table rank_options() {
  return {
      {.name = "transport",
       .help = "how gradients travel: NCCL between GPUs, MPI through host memory; auto takes NCCL "
               "if each rank has a GPU to itself",
       .value = one_of(&ParallelConfig::transport,
                       {TransportKind::kAuto, TransportKind::kNccl, TransportKind::kMpi}),
       .agreement = kNotShared},  // ranks compare the resulting value instead
      {.name = "scheme",
       .help = "ddp: all-reduce the gradients; zero1: each rank updates a share of the weights and "
               "keeps optimizer state for that share only; zero2: and gradients for that share "
               "only; zero3: and weights, gathered layer by layer when they are needed; factor: "
               "gather the layers' inputs and output gradients, from which each rank computes the "
               "whole gradient; server: ranks push gradients to parameter servers, which update "
               "the weights, and pull these",
       .value = schemes(kDdp)},
      {.name = "tensor",
       .help = "ranks that share every layer: pairs of layers are cut by the first one's outputs "
               "and the second one's inputs; the other ranks share the batch",
       .value = number(&ParallelConfig::tensor, limits::kMeshSizes)},
      {.name = "bucket-mib",
       .help = "reduce or scatter gradients in buckets of this many MiB as soon as one is complete",
       .value = number(&ParallelConfig::bucket_mib, limits::kBucketMibs),
       .unset = "PyTorch's: 25, the first one 1"},
      {.name = "first-bucket",
       .help = "whole: the first step reduces all gradients in one bucket, as PyTorch's does",
       .value = either(&ParallelConfig::whole_first_bucket, "same", "whole")},
      {.name = "grad-dtype",
       .help = "bf16: round gradients to bf16 for the all-reduce, which halves the bytes",
       .value = either(&ParallelConfig::bf16_gradients, "fp32", "bf16"),
       .decides_numbers = true},
      {.name = "reduce-every-micro-step",
       .help = "reduce gradients in each micro-step of --accumulate instead of in the last, as "
               "PyTorch does without no_sync()",
       .value = flag(&ParallelConfig::reduces_every_micro_step, true)},
      {.name = "no-overlap",
       .help = "reduce gradients after the whole backward pass instead of during it",
       .value = flag(&ParallelConfig::overlap, false)},
      {.name = "update",
       .help = "separate: update after all communication; per-bucket: update each bucket after its "
               "own; fused needs --scheme factor; auto takes it there, as in mlp_single",
       .value = one_of(&TrainingConfig::update)},
  };
}

Table watchdog_options() {
  return {{.name = "timeout",
           .help = "a run in which a collective, a step or the set-up takes longer than this ends "
                   "with exit code 75",
           .value = number(&ParallelConfig::timeout_s, limits::kTimeouts, "SECONDS"),
           .agreement = kNotShared}};
}

/// Each rank may have different pauses.
Table injected_options() {
  return {
      {.name = "io-delay-ms",
       .help = "simulate a slow disk: pause in each step or, where --workers load files, before "
               "each batch of a worker",
       .value = number(&DataConfig::io_delay_ms, limits::kDelays),
       .agreement = kNotShared},
      {.name = "delay-ms",
       .help = "pause before each backward pass",
       .value = number(&InjectedConfig::delay_ms, limits::kDelays),
       .agreement = kNotShared},
      {.name = "slow-rank",
       .help = "pause of MS milliseconds before each backward pass of rank R",
       .value = value_at(
           &InjectedConfig::slow_rank, JsonKind::kString, "R:MS", text_of(limits::kDelays),
           &slow_rank,
           [](const SlowRank& slow) { return fmt::format("{}:{}", slow.rank, slow.delay_ms); }),
       .programs = {kDdp},
       .agreement = kNotShared},
      {.name = "jitter-ms",
       .help = "pause of random length up to X before each backward pass, different on every rank",
       .value = number(&InjectedConfig::jitter_ms, limits::kDelays),
       .programs = {kDdp},
       .agreement = kNotShared},
      {.name = "flip",
       .help = "a drill for --verify-every: flip a bit of a 32-bit word of a buffer before this "
               "step or, in it, right after a node, both as --explain shows them",
       .value = value_at(&InjectedConfig::flip, JsonKind::kString,
                         "BUFFER:WORD:BIT[:NODE]@STEP[,rank R]", "", &flip,
                         [](const Flip& flip) { return text_of(flip); })},
  };
}

Table profiling_options() {
  return {
      {.name = "profile",
       .help = "print where the time of a step goes: by op, layer and phase, in PyTorch's columns",
       .value = flag(&OutputConfig::profile)},
      {.name = "trace",
       .help = "write a trace of the profiled steps and the one after them for Perfetto, "
               "HolisticTraceAnalysis and TensorBoard; FILE.json or FILE.json.gz; several ranks or "
               "devices write FILE.rank0.json or FILE.device0.json and so on",
       .value = file(&OutputConfig::trace),
       .agreement = Agreement::kWhetherGiven},
      {.name = "profile-steps",
       .help = "profile the steps A to B - 1",
       .value = value_at(
           &OutputConfig::profile_steps, JsonKind::kString, "A:B", "", &step_range,
           [](const StepRange& steps) { return fmt::format("{}:{}", steps.first, steps.end); }),
       .unset = "the last half of those after warm-up, at most 50"},
      {.name = "profile-phases",
       .help = "show only these phases of a step in the tables of --profile, as PyTorch's profiler "
               "around them would: forward,loss,backward; any of " +
               joined(phases_of_steps(), ", "),
       .value = value_at(&OutputConfig::profile_phases, JsonKind::kString, "P,P,...", "", &phases,
                         &text_of_phases),
       .unset = "all",
       .agreement = kNotShared},
      {.name = "sort-by",
       .help = "sort the rows by this, largest first: " + joined(kNamesOf<SortBy>, ", "),
       .value = one_of(&OutputConfig::sort_by, {}, "KEY"),
       .unset = std::string(name_of(SortBy::kDeviceTotal)),
       .agreement = kNotShared},
      {.name = "row-limit",
       .help = "largest number of rows of a table",
       .value = number(&OutputConfig::row_limit, limits::kRows),
       .unset = text_of_number(kDefaultRowLimit),
       .agreement = kNotShared},
  };
}

Table observing_options() {
  return {
      {.name = "tensorboard",
       .help = "write loss, step time, throughput and utilization of every step as event files for "
               "TensorBoard",
       .value = file(&OutputConfig::tensorboard, "DIR"),
       .programs = {kSingle, kDdp},
       .agreement = kNotShared},
      {.name = "monitor",
       .help = "sample load, memory, clocks and a GPU's power ten times a second; prints lines and "
               "a summary, adds records to --metrics and counters to the trace",
       .value = flag(&OutputConfig::monitor)},
      {.name = "verify-every",
       .help = "every N steps, run a step again and compare the bits of every op's output, and the "
               "ranks' states with each other or, for N = 1, with what the step before left; a "
               "difference is named and ends the run with exit code 77, and nothing is saved",
       .value = number(&OutputConfig::verify_every, limits::kCounts)},
      {.name = "quiet",
       .help = "print no line per step, evaluation or sample, and no progress bar; only the header "
               "and the summary",
       .value = flag(&OutputConfig::quiet),
       .agreement = kNotShared},
      {.name = "verbose",
       .help = "also print which items of the checklist for benchmarks hold: frequency scaling, "
               "other programs, seed, warm-up, repeats",
       .value = flag(&OutputConfig::verbose)},
      {.name = "metrics",
       .help = "write JSON Lines: the configuration, then one record a step",
       .value = file(&OutputConfig::metrics),
       .agreement = Agreement::kWhetherGiven},
      {.name = "plan",
       .help = "print the memory plan and exit",
       .value = flag(&OutputConfig::plan),
       .agreement = kNotShared},
      {.name = "memory",
       .help = "assume a device with this memory, such as 16GiB",
       .value = value_at(&OutputConfig::memory, JsonKind::kNumberOrString, "SIZE", "", &byte_count,
                         [](std::int64_t bytes) { return text_of_number(bytes); }),
       .unset = "what it has",
       .agreement = kNotShared},
      {.name = "explain",
       .help = "print a step, op by op, and exit",
       .value = flag(&OutputConfig::explain),
       .agreement = kNotShared},
  };
}

Table file_options() {
  return {
      {.name = "save",
       .help = "write the weights (safetensors) at the end",
       .value = file(&OutputConfig::save),
       .agreement = kNotShared},
      {.name = "load",
       .help = "start from these weights (safetensors), or those of a checkpoint",
       .value = file(&OutputConfig::load),
       .agreement = kNotShared},
      {.name = "checkpoint",
       .help =
           "write checkpoints into this folder: at intervals, at the end, and when a signal or "
           "--time-limit ends the run; a resumed run gives the same bits as an uninterrupted one",
       .value = file(&CheckpointConfig::folder, "DIR"),
       .agreement = Agreement::kWhetherGiven},
      {.name = "checkpoint-every",
       .help = "write a checkpoint after this many steps, or this much time",
       .value = value_at(&CheckpointConfig::every, JsonKind::kNumberOrString, "N|TIME", "",
                         &checkpoint_every,
                         [](const CheckpointEvery& every) { return text_of(every); })},
      {.name = "checkpoint-keep",
       .help = "how many of the newest checkpoints to keep",
       .value = number(&CheckpointConfig::keep, limits::kCheckpoints),
       .agreement = kNotShared},
      {.name = "checkpoint-best",
       .help = "also keep the one with the smallest test loss after an epoch, in DIR/best",
       .value = flag(&CheckpointConfig::best)},
      {.name = "resume",
       .help = "continue from the newest complete checkpoint in the folder; start from the "
               "beginning if there is none",
       .value = flag(&CheckpointConfig::resume)},
      {.name = "resume-from",
       .help = "continue from this checkpoint",
       .value = file(&CheckpointConfig::resume_from),
       .agreement = Agreement::kWhetherGiven},
      {.name = "time-limit",
       .help = "end the run after the step in which this much time has passed, with exit code 75",
       .value = value_at(&CheckpointConfig::time_limit_s, JsonKind::kString, "TIME", "", &duration,
                         [](double seconds) { return duration_text(seconds); }),
       .unset = "none",
       .agreement = kNotShared},
      {.name = "evaluate-only",
       .help = "do not train: print loss, accuracy or errors, latency and throughput of the "
               "weights of --load on the test set (--test-split), or on all samples of --data, for "
               "each of --batch-size, after --warmup batches",
       .value = flag(&TrainingConfig::evaluate_only),
       .programs = {kSingle, kDdp}},
      {.name = "quantization",
       .help =
           "with --precision int8. row: one scale for each output of the weights and each row of "
           "the activations, both symmetric; torch: as torch.ao.quantization.quantize_dynamic, one "
           "scale for the activations of a batch, in 7 bits, and one for a layer's weights; "
           "torch-per-channel: the same with one for each output",
       .value = one_of(&DeviceConfig::quantization),
       .unset = std::string(name_of(Quantization::kRow)),
       .programs = {kSingle, kDdp}},
  };
}

}  // namespace

std::span<const Option> options_of(SchemeKind scheme) {
  static const auto by_program = [] {
    EnumArray<SchemeKind, std::vector<Option>> options;
    const auto add = [&](std::string_view group, const Table& rows,
                         const std::vector<SchemeKind>& programs = {}) {
      for (const Option& row : rows) {
        const std::vector<SchemeKind>& own = row.programs.empty() ? programs : row.programs;
        for (const TrainingProgram& program : kTrainingPrograms) {
          const bool has_it = own.empty() || std::ranges::count(own, program.usual) > 0;
          if (has_it) options[program.usual].emplace_back(row).group = group;
        }
      }
    };
    add("Model", model_options());
    add("Model", transformer_options());
    add("Data", data_options());
    add("Data", batch_options());
    add("Training", run_options());
    add("Training", optimizer_options());
    add("Training", learning_rate_options());
    add("Training", gradient_options());
    add("Device", device_options());
    add("Device", product_options());
    add("Parallel", spread_options(), {kDp});
    add("Parallel", pipeline_options(), {kDp, kDdp});
    add("Parallel", rank_options(), {kDdp});
    add("Parallel", update_options_of_ranks(), {kDdp});
    add("Parallel", watchdog_options(), {kDp, kDdp});
    add("Injected", injected_options());
    add("Observing", profiling_options());
    add("Observing", observing_options());
    add("Files", file_options());
    return options;
  }();
  return by_program[program_of(scheme).usual];
}

}  // namespace barestep
