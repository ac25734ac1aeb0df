// The table of options. A row of one name stands once for each program whose value differs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/units.h"
#include "options/option_kinds.h"
#include "options/options.h"

namespace barestep {
namespace {

using Table = std::vector<Option>;

constexpr TrainerKind kSingle = TrainerKind::kSingle;
constexpr TrainerKind kDp = TrainerKind::kDataParallel;
constexpr TrainerKind kDdp = TrainerKind::kDdp;

// What ranks need not share.
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
          [](const Given& given, TrainConfig& c) {
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
  return {JsonKind::kString, "randn|idx:X,Y|npy:X,Y|safetensors:F", "",
          [](const Given& given, TrainConfig& c) { data_source(given, c.data); },
          [](const TrainConfig& c) -> std::optional<std::string> {
            std::string text(name_of(c.data.kind));
            if (c.data.kind == DataKind::kRandn) return text;
            text += ":" + c.data.x.string();
            if (c.data.kind != DataKind::kSafetensors) text += "," + c.data.y.string();
            return text;
          }};
}

/// A batch size, or several to run one after the other.
OptionValue sweep() {
  OptionValue value = number(&DataConfig::batch_size, limits::kBatchSizes);
  value.json = JsonKind::kNumberOrNumbers;
  value.argument = "N|N1,N2,...";
  value.read = [](const Given& given, TrainConfig& c) { batch_sizes(given, c.data); };
  value.text = [one = value.text](const TrainConfig& c) {
    return c.data.sweep.empty() ? one(c) : text_of_numbers(c.data.sweep);
  };
  return value;
}

// Ranks have one batch size by two names: that of all, unless it was given as each rank's.
OptionValue batch_of_all_ranks() {
  OptionValue value = number(&DataConfig::batch_size, limits::kBatchSizes);
  value.read = [read = value.read](const Given& given, TrainConfig& c) {
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
  value.read = [read = value.read](const Given& given, TrainConfig& c) {
    read(given, c);
    c.parallel.batch_per_rank = true;
  };
  value.text = [text = value.text](const TrainConfig& c) {
    return c.parallel.batch_per_rank ? text(c) : std::nullopt;
  };
  return value;
}

OptionValue betas() {
  return {JsonKind::kNumbers, "B1,B2", "two numbers from 0 to below 1",
          [](const Given& given, TrainConfig& c) {
            std::tie(c.optimizer.beta1, c.optimizer.beta2) = two_shares(given);
          },
          [](const TrainConfig& c) -> std::optional<std::string> {
            if (!c.optimizer.beta1 && !c.optimizer.beta2) return std::nullopt;
            const OptimizerNumbers numbers = numbers_of(c.optimizer);
            return fmt::format("{},{}", numbers.beta1, numbers.beta2);
          }};
}

Table model_options() {
  return {
      {.name = "dim",
       .help = "width of every layer",
       .value = number(&ModelConfig::dim, limits::kWidths),
       .unset = fmt::format("{} on the CPU, {} on a GPU", kDefaultDimCpu, kDefaultDimCuda),
       .replaces = {"layers"}},
      {.name = "depth",
       .help = "number of Linear layers",
       .value = number(&ModelConfig::depth, limits::kDepths),
       .unset = text_of_number(kDefaultDepth),
       .replaces = {"layers"}},
      {.name = "layers",
       .help = "widths from input to output, instead of --dim and --depth",
       .value = layers(),
       .replaces = {"dim", "depth"}},
      {.name = "activation",
       .help = "what follows each Linear",
       .value = one_of(&ModelConfig::activation),
       .decides_numbers = true},
      {.name = "no-last-relu",
       .help = "no activation after the last Linear",
       .value = flag(&ModelConfig::last_relu, false),
       .decides_numbers = true},
      {.name = "dropout",
       .help = "share of the numbers that training, not evaluation, sets to 0 after every "
               "activation but that of the last Linear, as torch.nn.Dropout does; with "
               "--no-last-relu that is after every activation",
       .value = number(&ModelConfig::dropout, limits::kShares, "P"),
       .decides_numbers = true},
      {.name = "loss",
       .help =
           "mse, l1 and huber for numbers, cross-entropy for class labels, bce for one column of "
           "0 and 1",
       .value = one_of(&ModelConfig::loss),
       .decides_numbers = true},
      {.name = "label-smoothing",
       .help = "share of a cross-entropy label that all classes get alike",
       .value = number(&ModelConfig::label_smoothing, limits::kShares),
       .decides_numbers = true},
  };
}

Table data_options() {
  return {
      {.name = "data",
       .help =
           "fresh random numbers each step, or files of samples and of their labels or targets: "
           "idx (plain or .gz), npy, or tensors x and y of safetensors; shards by a pattern, as "
           "npy:x-*.npy,y-*.npy",
       .value = data_files(),
       .agreement = Agreement::kWhetherGiven},  // files are compared by what they hold
      {.name = "workers",
       .help = "threads that load batches ahead; 0 loads them inside the step; files only",
       .value = number(&DataConfig::workers, limits::kWorkers),
       .agreement = kNotShared},
      {.name = "prefetch",
       .help = "batches each worker may be ahead",
       .value = number(&DataConfig::prefetch, limits::kPrefetches),
       .agreement = kNotShared},
      {.name = "no-pin",
       .help = "copy batches from pageable memory instead of page-locked memory",
       .value = flag(&DataConfig::pin, false),
       .agreement = kNotShared},
      {.name = "no-shuffle",
       .help = "visit the samples of --data's files in their order in every epoch",
       .value = flag(&DataConfig::shuffle, false),
       .decides_numbers = true},
      {.name = "standardize",
       .help = "give every feature mean 0 and standard deviation 1, by those of the training set; "
               "targets stay as they are",
       .value = flag(&DataConfig::standardize),
       .decides_numbers = true},
      {.name = "drop-last",
       .help = "leave out the smaller last batch of an epoch",
       .value = flag(&DataConfig::drop_last),
       .decides_numbers = true},
      {.name = "test-split",
       .help = "share of the samples, the last ones, to test with",
       .value = number(&DataConfig::test_split, limits::kShares, "SHARE"),
       .decides_numbers = true},
  };
}

Table batch_options() {
  return {
      {.name = "batch-size",
       .help = "samples in a step, or a list: a run for each and a table of all at the end",
       .value = sweep(),
       .trainers = {kSingle}},
      {.name = "batch-size",
       .help = "samples in a step, all devices together",
       .value = number(&DataConfig::batch_size, limits::kBatchSizes),
       .trainers = {kDp}},
      {.name = "global-batch-size",
       .help = "samples in a step, all ranks together; the first ranks take one more where they do "
               "not divide",
       .value = batch_of_all_ranks(),
       .replaces = {"batch-size"},
       .trainers = {kDdp}},
      {.name = "batch-size",
       .help = "samples in a step of each rank, instead of --global-batch-size",
       .value = batch_of_each_rank(),
       .replaces = {"global-batch-size"},
       .trainers = {kDdp}},
      {.name = "data-seeding",
       .help = "random data: every rank draws that of all and takes its rows, or each draws its "
               "own, seeded with --seed plus its rank",
       .value = either(&ParallelConfig::seed_per_rank, "global", "per-rank"),
       .trainers = {kDdp},
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
       .help = "end after so many evaluations in a row without a smaller test loss",
       .value = number(&TrainingConfig::early_stop, limits::kCounts)},
      {.name = "warmup",
       .help = "first steps left out of the summary",
       .value = number(&TrainingConfig::warmup, limits::kWarmups),
       .unset = fmt::format("{}, fewer in a run that short", kDefaultWarmup)},
      {.name = "seed",
       .help = "of weights and data, as in PyTorch",
       .value = value_at(&TrainingConfig::seed, JsonKind::kNumber, "N", "any 64-bit integer",
                         &seed_number, [](std::uint64_t seed) { return fmt::format("{}", seed); }),
       .decides_numbers = true},
      {.name = "log-every",
       .help = "print each Nth step, and wait for these alone before the next one is queued",
       .value = number(&TrainingConfig::log_every, limits::kCounts)},
  };
}

Table optimizer_options() {
  return {
      {.name = "optimizer",
       .help = "as torch.optim has them, rmsprop with alpha 0.99; lion as its paper has it",
       .value = one_of(&OptimizerConfig::kind),
       .decides_numbers = true},
      {.name = "betas",
       .help = "decay of Adam's two moments; of Lion's moment in the step and after it",
       .value = betas(),
       .unset = "0.9,0.999, with lion 0.9,0.99",
       .decides_numbers = true},
      {.name = "eps",
       .help = "of adam, adamw, rmsprop and adagrad, added to what the step is divided by",
       .value = number(&OptimizerConfig::eps, limits::kNotNegative),
       .unset = "1e-08, with adagrad 1e-10",
       .decides_numbers = true},
      {.name = "amsgrad",
       .help = "Adam with the largest second moment so far",
       .value = flag(&OptimizerConfig::amsgrad),
       .decides_numbers = true},
      {.name = "momentum",
       .help = "of sgd, without dampening, and of rmsprop",
       .value = number(&OptimizerConfig::momentum, limits::kShares),
       .decides_numbers = true},
      {.name = "nesterov",
       .help = "Nesterov's momentum",
       .value = flag(&OptimizerConfig::nesterov),
       .decides_numbers = true},
      {.name = "weight-decay",
       .help = "of adamw and lion taken off the weights, of others added to the gradient",
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
       .help = "steps over which the learning rate grows, by equal amounts, to its value",
       .value = number(&OptimizerConfig::lr_warmup, limits::kWarmups),
       .decides_numbers = true},
      {.name = "lr-schedule",
       .help =
           "what becomes of the learning rate after --lr-warmup, step by step: linear and cosine "
           "end at --lr-min, step multiplies it by --lr-gamma every --lr-step steps; as "
           "PyTorch's LinearLR, CosineAnnealingLR and StepLR",
       .value = one_of(&OptimizerConfig::lr_schedule),
       .decides_numbers = true},
      {.name = "lr-min",
       .help = "learning rate that linear and cosine end at",
       .value = number(&OptimizerConfig::lr_min, limits::kNotNegative),
       .unset = "0",
       .decides_numbers = true},
      {.name = "lr-step",
       .help = "steps between two reductions of --lr-schedule step",
       .value = number(&OptimizerConfig::lr_step, limits::kCounts),
       .unset = text_of_number(kDefaultLrStep),
       .decides_numbers = true},
      {.name = "lr-gamma",
       .help = "what --lr-schedule step multiplies by",
       .value = number(&OptimizerConfig::lr_gamma, limits::kPositive),
       .unset = text_of_number(kDefaultLrGamma),
       .decides_numbers = true},
      {.name = "lr-scale",
       .help = "linear: the learning rate times the number of ranks, which is 1 on one device",
       .value = one_of(&OptimizerConfig::lr_scale)},
  };
}

Table gradient_options() {
  const std::vector<Update> of_one = {Update::kAuto, Update::kSeparate, Update::kFused};
  return {
      {.name = "accumulate",
       .help = "micro-steps of --batch-size samples whose gradients add up to one step; needs the "
               "activations of one only, but of all with --update fused",
       .value = number(&TrainingConfig::accumulate, limits::kMicroSteps)},
      {.name = "recompute",
       .help =
           "cut the layers into S segments, as torch.utils.checkpoint.checkpoint_sequential does: "
           "backward computes the outputs inside each but the last once more, so that segments "
           "share memory; auto, with --plan and --memory, names the cheapest S that fits",
       .value =
           value_at(&TrainingConfig::recompute, JsonKind::kNumberOrString, "S|auto",
                    text_of(limits::kDepths) + ", or auto", &segment_count, &text_of_segments)},
      {.name = "no-zero-grad",
       .help = "gradients add up from step to step",
       .value = flag(&TrainingConfig::zero_grad, false),
       .decides_numbers = true},
      {.name = "clip-norm",
       .help = "scale gradients down where the norm of all together is larger, as "
               "torch.nn.utils.clip_grad_norm_ does",
       .value = number(&TrainingConfig::clip_norm, limits::kPositive),
       .unset = "never",
       .decides_numbers = true},
      {.name = "update",
       .help =
           "fused: the weight gradients go straight into Adam and are never stored; in fp32, "
           "also with --precision tf32; auto: fused on the CPU where that is faster and nothing "
           "else looks at gradients",
       .value = one_of(&TrainingConfig::update, of_one),
       .trainers = {kSingle}},
      {.name = "update",
       .help = "as in mlp_single; fused stores no gradients, which several devices exchange, so it "
               "is refused",
       .value = one_of(&TrainingConfig::update, of_one),
       .trainers = {kDp}},
  };
}

Table device_options() {
  return {
      {.name = "device",
       .help = "where to train; auto is a GPU where there is one",
       .value = value_at(&DeviceConfig::device, JsonKind::kString, "auto|cpu|cuda|cuda:N", "",
                         &device_name, [](const std::string& name) { return name; }),
       .agreement = kNotShared},
      {.name = "threads",
       .help = "of the CPU device",
       .value = number(&DeviceConfig::threads, limits::kThreads),
       .unset = "one for each CPU this process may use",
       .agreement = kNotShared},
      {.name = "gemm",
       .help = "who computes matrix products on the CPU; auto is the first of the others that this "
               "build has",
       .value = one_of(&DeviceConfig::gemm),
       .agreement = kNotShared},  // ranks compare the libraries that they have
      {.name = "fusion",
       .help = "bias and activation inside the forward product",
       .value = either(&DeviceConfig::fusion, "on", "off")},
      {.name = "precision",
       .help =
           "of matrix products; tf32 is a GPU's, faster and less exact; bf16 and fp16 are those "
           "of torch.autocast: what products read and write has 16 bits, weights and all that "
           "the optimizer keeps stay fp32; int8 is for "
           "--evaluate-only, which shows it beside fp32",
       .value = one_of(&DeviceConfig::precision),
       .decides_numbers = true},
      {.name = "loss-scale",
       .help = "of fp16: gradients are computed so many times as large, as with "
               "torch.amp.GradScaler; dynamic from INIT on, or always X",
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
       .help = "capture a step once, then launch it as one piece",
       .value = flag(&DeviceConfig::graph)},
      {.name = "autotune",
       .help = "on: time a GPU's algorithms for products above 1 GFLOP once, and keep the choices; "
               "FILE: for all products, and keep them there; off: take the library's first",
       .value = tuning(),
       .unset = "on",
       .agreement = kNotShared},
  };
}

/// Of mlp_dp.
Table spread_options() {
  return {
      {.name = "devices",
       .help = "devices to spread each step over, cpu or cuda:N; a name given twice counts as two",
       .value = value_at(&DeviceConfig::devices, JsonKind::kString, "D0,D1,...", "", &device_names,
                         [](const std::vector<std::string>& names) { return joined(names, ","); }),
       .unset = "the GPUs, else two CPU devices",
       .replaces = {"device"},
       .trainers = {kDp}},
      {.name = "transport",
       .help = "what carries parameters and gradients: NCCL between GPUs that are each given once, "
               "or copies from device to device and sums of our own; auto is NCCL where it can be",
       .value = one_of(&ParallelConfig::transport,
                       {Transport::kAuto, Transport::kNccl, Transport::kPeer}),
       .trainers = {kDp}},
      {.name = "show-split",
       .help = "print the rows that each device gets in each step",
       .value = flag(&OutputConfig::show_split),
       .trainers = {kDp}},
  };
}

/// Of mlp_ddp.
Table rank_options() {
  return {
      {.name = "transport",
       .help = "what carries gradients: NCCL between GPUs, MPI through host memory; auto is NCCL "
               "where each rank has a GPU of its own",
       .value = one_of(&ParallelConfig::transport,
                       {Transport::kAuto, Transport::kNccl, Transport::kMpi}),
       .trainers = {kDdp},
       .agreement = kNotShared},  // ranks compare what it comes to
      {.name = "scheme",
       .help = "what ranks exchange: ddp sums gradients; zero1 too, and each rank updates a share "
               "of the weights and has the optimizer's memory for that share only; factor gathers "
               "the layers' inputs and output gradients, of which each rank makes the whole "
               "gradient",
       .value = one_of(&ParallelConfig::scheme),
       .trainers = {kDdp}},
      {.name = "bucket-mib",
       .help = "gradients are reduced together as soon as so many MiB of them are complete, the "
               "first ones with 1 MiB",
       .value = number(&ParallelConfig::bucket_mib, limits::kBucketMibs),
       .trainers = {kDdp}},
      {.name = "first-bucket",
       .help = "whole: the first step reduces all gradients as one, as PyTorch's does",
       .value = either(&ParallelConfig::whole_first_bucket, "same", "whole"),
       .trainers = {kDdp}},
      {.name = "grad-dtype",
       .help = "bf16: gradients are rounded to bf16 for the all-reduce, which moves half the bytes",
       .value = either(&ParallelConfig::bf16_gradients, "fp32", "bf16"),
       .trainers = {kDdp},
       .decides_numbers = true},
      {.name = "no-overlap",
       .help = "reduce gradients after the whole backward pass, not during it",
       .value = flag(&ParallelConfig::overlap, false),
       .trainers = {kDdp}},
      {.name = "update",
       .help = "the optimizer's step after all communication, or of each bucket after its own; "
               "fused needs --scheme factor; auto takes it there, as in mlp_single",
       .value = one_of(&TrainingConfig::update),
       .trainers = {kDdp}},
  };
}

Table watchdog_options() {
  return {{.name = "timeout",
           .help = "a run in which a collective, a step or the set-up takes longer than this ends "
                   "with exit code 75",
           .value = number(&ParallelConfig::timeout_s, limits::kTimeouts, "SECONDS"),
           .trainers = {kDp, kDdp},
           .agreement = kNotShared}};
}

/// Each rank may have pauses of its own.
Table injected_options() {
  return {
      {.name = "io-delay-ms",
       .help = "a slow disk: a pause in each step, or where --workers load files in each worker "
               "before each batch",
       .value = number(&DataConfig::io_delay_ms, limits::kDelays),
       .agreement = kNotShared},
      {.name = "delay-ms",
       .help = "a pause before each backward pass",
       .value = number(&InjectedConfig::delay_ms, limits::kDelays),
       .agreement = kNotShared},
      {.name = "slow-rank",
       .help = "a pause of MS milliseconds before each backward pass of rank R",
       .value = value_at(
           &InjectedConfig::slow_rank, JsonKind::kString, "R:MS", text_of(limits::kDelays),
           &slow_rank,
           [](const SlowRank& slow) { return fmt::format("{}:{}", slow.rank, slow.delay_ms); }),
       .trainers = {kDdp},
       .agreement = kNotShared},
      {.name = "jitter-ms",
       .help = "before each backward pass a pause of random length, up to X, of its own on every "
               "rank",
       .value = number(&InjectedConfig::jitter_ms, limits::kDelays),
       .trainers = {kDdp},
       .agreement = kNotShared},
  };
}

Table profiling_options() {
  return {
      {.name = "profile",
       .help = "print where the time of a step goes: by op, layer and phase, in PyTorch's columns",
       .value = flag(&OutputConfig::profile)},
      {.name = "trace",
       .help = "write the profiled steps, and the one after them, for Perfetto, "
               "HolisticTraceAnalysis and TensorBoard; F.json or F.json.gz; of several ranks or "
               "devices F.rank0.json or F.device0.json and so on",
       .value = file(&OutputConfig::trace),
       .agreement = Agreement::kWhetherGiven},
      {.name = "profile-steps",
       .help = "the steps from A to before B",
       .value = value_at(
           &OutputConfig::profile_steps, JsonKind::kString, "A:B", "", &step_range,
           [](const StepRange& steps) { return fmt::format("{}:{}", steps.first, steps.end); }),
       .unset = "the last half of those after warm-up, at most 50"},
      {.name = "sort-by",
       .help = "what rows are sorted by, largest first: " + joined(kNamesOf<SortBy>, ", "),
       .value = one_of(&OutputConfig::sort_by, {}, "KEY"),
       .unset = std::string(name_of(SortBy::kDeviceTotal)),
       .agreement = kNotShared},
      {.name = "row-limit",
       .help = "rows of a table",
       .value = number(&OutputConfig::row_limit, limits::kRows),
       .unset = text_of_number(kDefaultRowLimit),
       .agreement = kNotShared},
  };
}

Table observing_options() {
  return {
      {.name = "tensorboard",
       .help = "write loss, step time, throughput and utilisation of every step as event files for "
               "TensorBoard",
       .value = file(&OutputConfig::tensorboard, "DIR"),
       .trainers = {kSingle, kDdp},
       .agreement = kNotShared},
      {.name = "monitor",
       .help =
           "look at the machine ten times a second: load, memory, clocks, a GPU's power; lines, "
           "a summary, records in --metrics, and counters in the trace",
       .value = flag(&OutputConfig::monitor)},
      {.name = "metrics",
       .help = "write JSON Lines: the configuration, then one record a step",
       .value = file(&OutputConfig::metrics),
       .agreement = Agreement::kWhetherGiven},
      {.name = "plan",
       .help = "print the memory plan and exit",
       .value = flag(&OutputConfig::plan),
       .agreement = kNotShared},
      {.name = "memory",
       .help = "memory the device is taken to have, as 16GiB",
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
       .help = "begin with these weights (safetensors), also those of a checkpoint",
       .value = file(&OutputConfig::load),
       .agreement = kNotShared},
      {.name = "checkpoint",
       .help = "write checkpoints, from which the run goes on to the bit, into this folder: in "
               "intervals, at the end, and when a signal or --time-limit ends the run",
       .value = file(&CheckpointConfig::folder, "DIR"),
       .agreement = Agreement::kWhetherGiven},
      {.name = "checkpoint-every",
       .help = "after each so many steps, or as soon as so much time has passed",
       .value = value_at(&CheckpointConfig::every, JsonKind::kNumberOrString, "N|TIME", "",
                         &checkpoint_every,
                         [](const CheckpointEvery& every) { return text_of(every); })},
      {.name = "checkpoint-keep",
       .help = "how many of the newest stay",
       .value = number(&CheckpointConfig::keep, limits::kCheckpoints),
       .agreement = kNotShared},
      {.name = "checkpoint-best",
       .help = "keep the one with the smallest test loss too, in DIR/best",
       .value = flag(&CheckpointConfig::best)},
      {.name = "resume",
       .help = "go on from the newest whole checkpoint in the folder; start where there is none",
       .value = flag(&CheckpointConfig::resume)},
      {.name = "resume-from",
       .help = "go on from this checkpoint",
       .value = file(&CheckpointConfig::resume_from),
       .agreement = Agreement::kWhetherGiven},
      {.name = "time-limit",
       .help = "end the run after the step in which this much time has passed, with exit code 75",
       .value = value_at(&CheckpointConfig::time_limit_s, JsonKind::kString, "TIME", "", &duration,
                         [](double seconds) { return duration_text(seconds); }),
       .unset = "none",
       .agreement = kNotShared},
      {.name = "evaluate-only",
       .help = "train nothing: loss, accuracy or errors, latency and throughput of the weights of "
               "--load "
               "on the test set (--test-split), or on all samples of --data, for each of "
               "--batch-size; --warmup batches come before",
       .value = flag(&TrainingConfig::evaluate_only),
       .trainers = {kSingle, kDdp}},
      {.name = "quantization",
       .help =
           "of --precision int8. row: weights have a scale for each output, activations one for "
           "each row; both symmetric. torch: as torch.ao.quantization.quantize_dynamic, one "
           "scale for the activations of a batch, in 7 bits, and one for a layer's weights, or "
           "with torch-per-channel one for each output",
       .value = one_of(&DeviceConfig::quantization),
       .unset = std::string(name_of(Quantization::kRow)),
       .trainers = {kSingle, kDdp}},
  };
}

}  // namespace

std::span<const Option> options_of(TrainerKind trainer) {
  static const auto by_trainer = [] {
    EnumArray<TrainerKind, std::vector<Option>> options;
    const auto add = [&](std::string_view group, const std::vector<Option>& rows) {
      for (const Option& row : rows) {
        for (const TrainerKind each : kValuesOf<TrainerKind>) {
          const bool has_it =
              row.trainers.empty() || std::ranges::find(row.trainers, each) != row.trainers.end();
          if (has_it) options[each].emplace_back(row).group = group;
        }
      }
    };
    add("Model", model_options());
    add("Data", data_options());
    add("Data", batch_options());
    add("Training", run_options());
    add("Training", optimizer_options());
    add("Training", learning_rate_options());
    add("Training", gradient_options());
    add("Device", device_options());
    add("Parallel", spread_options());
    add("Parallel", rank_options());
    add("Parallel", watchdog_options());
    add("Injected", injected_options());
    add("Observing", profiling_options());
    add("Observing", observing_options());
    add("Files", file_options());
    return options;
  }();
  return by_trainer[trainer];
}

}  // namespace barestep
