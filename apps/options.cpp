#include "options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "option_table.h"

namespace barestep {
namespace {

constexpr std::string_view kOnOff[] = {"on", "off"};

std::vector<Option> model_options() {
  return {
      {"dim",
       kModelGroup,
       "N",
       JsonKind::kNumber,
       with_range(fmt::format("width of every layer (default {} on the CPU, {} on a GPU)",
                              kDefaultDimCpu, kDefaultDimCuda),
                  limits::kWidths),
       [](const Given& given, TrainConfig& c) {
         c.model.dim = whole_number(given, limits::kWidths);
       },
       {"layers"}},
      {"depth",
       kModelGroup,
       "N",
       JsonKind::kNumber,
       with_range(fmt::format("number of Linear layers (default {})", kDefaultDepth),
                  limits::kDepths),
       [](const Given& given, TrainConfig& c) {
         c.model.depth = whole_number(given, limits::kDepths);
       },
       {"layers"}},
      {"layers",
       kModelGroup,
       "W0,W1,...",
       JsonKind::kNumbers,
       fmt::format("widths from input to output, instead of --dim and --depth;\n"
                   "{} to {} widths from {} to {}",
                   limits::kDepths.first + 1, limits::kDepths.last + 1, limits::kWidths.first,
                   limits::kWidths.last),
       [](const Given& given, TrainConfig& c) { c.model.layers = widths(given); },
       {"dim", "depth"}},
      {"activation", kModelGroup, "relu|none", JsonKind::kString,
       "what follows each Linear (default relu)",
       [](const Given& given, TrainConfig& c) {
         c.model.activation = static_cast<Activation>(choice(given, kNamesOf<Activation>));
       }},
      {"no-last-relu", kModelGroup, "", JsonKind::kBoolean, "no activation after the last Linear",
       [](const Given& given, TrainConfig& c) {
         no_value(given);
         c.model.last_relu = false;
       }},
      {"loss", kModelGroup, "mse|cross-entropy", JsonKind::kString,
       "mse for numbers, cross-entropy for class labels (default mse)",
       [](const Given& given, TrainConfig& c) {
         c.model.loss = static_cast<LossKind>(choice(given, kNamesOf<LossKind>));
       }},
  };
}

std::vector<Option> data_options() {
  return {
      {"data", kDataGroup, "randn|idx:X,Y|npy:X,Y|safetensors:F", JsonKind::kString,
       "fresh random numbers each step, or files of samples and of their\n"
       "labels or targets: idx (plain or .gz), npy, or tensors x and y of\n"
       "safetensors; shards by a pattern, as npy:x-*.npy,y-*.npy\n"
       "(default randn)",
       [](const Given& given, TrainConfig& c) { data_source(given, c.data); }},
      {"workers", kDataGroup, "N", JsonKind::kNumber,
       with_range(fmt::format("threads that load batches ahead; 0 loads them inside the step\n"
                              "(default {}; files only)",
                              DataConfig{}.workers),
                  limits::kWorkers),
       [](const Given& given, TrainConfig& c) {
         c.data.workers = static_cast<int>(whole_number(given, limits::kWorkers));
       }},
      {"prefetch", kDataGroup, "N", JsonKind::kNumber,
       with_range(
           fmt::format("batches each worker may be ahead (default {})", DataConfig{}.prefetch),
           limits::kPrefetches),
       [](const Given& given, TrainConfig& c) {
         c.data.prefetch = static_cast<int>(whole_number(given, limits::kPrefetches));
       }},
      {"no-pin", kDataGroup, "", JsonKind::kBoolean,
       "copy batches from pageable memory instead of page-locked memory",
       [](const Given& given, TrainConfig& c) {
         no_value(given);
         c.data.pin = false;
       }},
      {"drop-last", kDataGroup, "", JsonKind::kBoolean,
       "leave out the smaller last batch of an epoch",
       [](const Given& given, TrainConfig& c) {
         no_value(given);
         c.data.drop_last = true;
       }},
      {"batch-size",
       kDataGroup,
       "N|N1,N2,...",
       JsonKind::kNumberOrNumbers,
       with_range(fmt::format("samples in a step (default {}), or a list: a run for each and a\n"
                              "table of all at the end",
                              DataConfig{}.batch_size),
                  limits::kBatchSizes),
       [](const Given& given, TrainConfig& c) { batch_sizes(given, c.data); },
       {},
       {"mlp_single"}},
      {"test-split", kDataGroup, "SHARE", JsonKind::kNumber,
       with_range("share of the samples, the last ones, to test with (default 0)", limits::kShares),
       [](const Given& given, TrainConfig& c) {
         c.data.test_split = real_number(given, limits::kShares);
       }},
  };
}

std::vector<Option> run_options() {
  return {
      {"steps",
       kTrainingGroup,
       "N",
       JsonKind::kNumber,
       with_range(fmt::format("training steps (default {})", kDefaultSteps), limits::kCounts),
       [](const Given& given, TrainConfig& c) {
         c.training.steps = whole_number(given, limits::kCounts);
       },
       {"epochs"}},
      {"epochs",
       kTrainingGroup,
       "N",
       JsonKind::kNumber,
       with_range("passes over the data, instead of --steps; needs files", limits::kCounts),
       [](const Given& given, TrainConfig& c) {
         c.training.epochs = whole_number(given, limits::kCounts);
       },
       {"steps"}},
      {"warmup", kTrainingGroup, "N", JsonKind::kNumber,
       with_range(fmt::format("first steps left out of the summary (default {}, fewer in a\n"
                              "run that short)",
                              kDefaultWarmup),
                  limits::kWarmups),
       [](const Given& given, TrainConfig& c) {
         c.training.warmup = whole_number(given, limits::kWarmups);
       }},
      {"seed", kTrainingGroup, "N", JsonKind::kNumber,
       "of weights and data, as in PyTorch (default 0); any 64-bit integer",
       [](const Given& given, TrainConfig& c) { c.training.seed = seed_number(given); }},
  };
}

std::vector<Option> optimizer_options() {
  return {
      {"optimizer", kTrainingGroup, "adam|adamw|sgd", JsonKind::kString,
       "as torch.optim has them (default adam)",
       [](const Given& given, TrainConfig& c) {
         c.optimizer.kind = static_cast<OptimizerKind>(choice(given, kNamesOf<OptimizerKind>));
       }},
      {"lr", kTrainingGroup, "X", JsonKind::kNumber,
       with_range(fmt::format("learning rate (default {})", OptimizerConfig{}.lr),
                  limits::kPositive),
       [](const Given& given, TrainConfig& c) {
         c.optimizer.lr = real_number(given, limits::kPositive);
       }},
      {"betas", kTrainingGroup, "B1,B2", JsonKind::kNumbers,
       fmt::format("decay of Adam's two moments (default {},{});\ntwo numbers from 0 to below 1",
                   OptimizerConfig{}.beta1, OptimizerConfig{}.beta2),
       [](const Given& given, TrainConfig& c) {
         std::tie(c.optimizer.beta1, c.optimizer.beta2) = two_shares(given);
       }},
      {"eps", kTrainingGroup, "X", JsonKind::kNumber,
       with_range(fmt::format("Adam's epsilon (default {})", OptimizerConfig{}.eps),
                  limits::kNotNegative),
       [](const Given& given, TrainConfig& c) {
         c.optimizer.eps = real_number(given, limits::kNotNegative);
       }},
      {"momentum", kTrainingGroup, "X", JsonKind::kNumber,
       with_range("of sgd, without dampening (default 0)", limits::kShares),
       [](const Given& given, TrainConfig& c) {
         c.optimizer.momentum = real_number(given, limits::kShares);
       }},
      {"nesterov", kTrainingGroup, "", JsonKind::kBoolean, "Nesterov's momentum",
       [](const Given& given, TrainConfig& c) {
         no_value(given);
         c.optimizer.nesterov = true;
       }},
      {"weight-decay", kTrainingGroup, "X", JsonKind::kNumber,
       with_range("of adam and sgd added to the gradient (default 0), of adamw taken\n"
                  "off the weights (default 0.01)",
                  limits::kNotNegative),
       [](const Given& given, TrainConfig& c) {
         c.optimizer.weight_decay = real_number(given, limits::kNotNegative);
       }},
  };
}

std::vector<Option> step_options() {
  return {
      {"lr-warmup", kTrainingGroup, "N", JsonKind::kNumber,
       with_range("steps over which the learning rate grows, by equal amounts, to its\n"
                  "value (default 0)",
                  limits::kWarmups),
       [](const Given& given, TrainConfig& c) {
         c.optimizer.lr_warmup = whole_number(given, limits::kWarmups);
       }},
      {"lr-scale", kTrainingGroup, "none|linear", JsonKind::kString,
       "linear: the learning rate times the number of ranks, which is 1\n"
       "on one device (default none)",
       [](const Given& given, TrainConfig& c) {
         c.optimizer.lr_scale = static_cast<LrScale>(choice(given, kNamesOf<LrScale>));
       }},
      {"accumulate", kTrainingGroup, "N", JsonKind::kNumber,
       with_range("micro-steps of --batch-size samples whose gradients add up to\n"
                  "one step; needs the activations of one only, but of all with\n"
                  "--update fused (default 1)",
                  limits::kMicroSteps),
       [](const Given& given, TrainConfig& c) {
         c.training.accumulate = whole_number(given, limits::kMicroSteps);
       }},
      {"no-zero-grad", kTrainingGroup, "", JsonKind::kBoolean, "gradients add up from step to step",
       [](const Given& given, TrainConfig& c) {
         no_value(given);
         c.training.zero_grad = false;
       }},
      {"log-every", kTrainingGroup, "N", JsonKind::kNumber,
       with_range(fmt::format("print each Nth step, and wait for these alone before the\n"
                              "next one is queued (default {})",
                              TrainingConfig{}.log_every),
                  limits::kCounts),
       [](const Given& given, TrainConfig& c) {
         c.training.log_every = whole_number(given, limits::kCounts);
       }},
  };
}

std::vector<Option> device_options() {
  return {
      {"device", kDeviceGroup, "auto|cpu|cuda|cuda:N", JsonKind::kString,
       "where to train; auto is a GPU where there is one (default auto)",
       [](const Given& given, TrainConfig& c) { c.device.device = device_name(given); }},
      {"threads", kDeviceGroup, "N", JsonKind::kNumber,
       with_range("of the CPU device (default: one for each CPU this process may use)",
                  limits::kThreads),
       [](const Given& given, TrainConfig& c) {
         c.device.threads = static_cast<int>(whole_number(given, limits::kThreads));
       }},
      {"gemm", kDeviceGroup, "auto|onednn|cblas|reference", JsonKind::kString,
       "who computes matrix products on the CPU (default auto: the first\n"
       "of the others that this build has)",
       [](const Given& given, TrainConfig& c) {
         c.device.gemm = static_cast<GemmProvider>(choice(given, kNamesOf<GemmProvider>));
       }},
      {"fusion", kDeviceGroup, "on|off", JsonKind::kString,
       "bias and ReLU inside the forward product (default on)",
       [](const Given& given, TrainConfig& c) { c.device.fusion = choice(given, kOnOff) == 0; }},
      {"precision", kDeviceGroup, "fp32|tf32", JsonKind::kString,
       "of matrix products; tf32 is a GPU's, faster and rounder\n(default fp32)",
       [](const Given& given, TrainConfig& c) {
         c.device.precision = static_cast<Precision>(choice(given, kNamesOf<Precision>));
       }},
      {"graph", kDeviceGroup, "", JsonKind::kBoolean,
       "capture a step once, then launch it as one piece",
       [](const Given& given, TrainConfig& c) {
         no_value(given);
         c.device.graph = true;
       }},
      {"autotune", kDeviceGroup, "FILE", JsonKind::kString,
       "time a GPU's product algorithms, keep the choices in FILE and\n"
       "take them from there in later runs",
       [](const Given& given, TrainConfig& c) { c.device.autotune = file_path(given); }},
  };
}

std::vector<Option> injected_options() {
  return {
      {"io-delay-ms", kInjectedGroup, "X", JsonKind::kNumber,
       with_range("a slow disk: a pause in each step, or where --workers load files\n"
                  "in each worker before each batch (default 0)",
                  limits::kDelays),
       [](const Given& given, TrainConfig& c) {
         c.data.io_delay_ms = real_number(given, limits::kDelays);
       }},
      {"delay-ms", kInjectedGroup, "X", JsonKind::kNumber,
       with_range("a pause before each backward pass (default 0)", limits::kDelays),
       [](const Given& given, TrainConfig& c) {
         c.injected.delay_ms = real_number(given, limits::kDelays);
       }},
  };
}

std::vector<Option> output_options() {
  return {
      {"metrics", kObservingGroup, "FILE", JsonKind::kString, "write JSON Lines, one record a step",
       [](const Given& given, TrainConfig& c) { c.output.metrics = file_path(given); }},
      {"plan", kObservingGroup, "", JsonKind::kBoolean, "print the memory plan and exit",
       [](const Given& given, TrainConfig& c) {
         no_value(given);
         c.output.plan = true;
       }},
      {"memory", kObservingGroup, "SIZE", JsonKind::kNumberOrString,
       "memory the device is taken to have, as 16GiB (default: what it\n"
       "has)",
       [](const Given& given, TrainConfig& c) { c.output.memory = byte_count(given); }},
      {"explain", kObservingGroup, "", JsonKind::kBoolean, "print a step, op by op, and exit",
       [](const Given& given, TrainConfig& c) {
         no_value(given);
         c.output.explain = true;
       }},
      {"save", kFilesGroup, "FILE", JsonKind::kString, "write the weights (safetensors) at the end",
       [](const Given& given, TrainConfig& c) { c.output.save = file_path(given); }},
      {"load", kFilesGroup, "FILE", JsonKind::kString, "begin with these weights (safetensors)",
       [](const Given& given, TrainConfig& c) { c.output.load = file_path(given); }},
      {"evaluate-only",
       kFilesGroup,
       "",
       JsonKind::kBoolean,
       "train nothing: loss, accuracy, latency and throughput of the weights\n"
       "of --load on the test set (--test-split), or on all samples of\n"
       "--data, for each of --batch-size; --warmup batches come before",
       [](const Given&, TrainConfig& c) { c.training.evaluate_only = true; },
       {},
       {"mlp_single", "mlp_ddp"}},
  };
}

}  // namespace

std::span<const Option> options_of(std::string_view program) {
  static std::map<std::string_view, std::vector<Option>, std::less<>> by_program;
  std::vector<Option>& options = by_program[program];
  if (!options.empty()) return options;
  for (const auto& part :
       {model_options(), data_options(), rank_data_options(), run_options(), optimizer_options(),
        step_options(), update_options(), device_options(), spread_options(), parallel_options(),
        watchdog_options(), injected_options(), rank_injected_options(), profiling_options(),
        monitor_options(), output_options()}) {
    std::ranges::copy_if(part, std::back_inserter(options), [&](const Option& option) {
      return option.programs.empty() ||
             std::ranges::find(option.programs, program) != option.programs.end();
    });
  }
  return options;
}

std::vector<std::string_view> names_of_options(std::string_view program) {
  std::vector<std::string_view> names;
  for (const Option& option : options_of(program)) names.push_back(option.name);
  return names;
}

}  // namespace barestep
