#include <utility>

#include "option_table.h"

namespace barestep {
namespace {

constexpr std::string_view kTransports[] = {"auto", "nccl", "mpi"};
constexpr std::string_view kSpreadTransports[] = {"auto", "nccl", "peer"};
constexpr std::string_view kGradTypes[] = {"fp32", "bf16"};
constexpr std::string_view kSeedings[] = {"global", "per-rank"};
constexpr std::string_view kFirstBuckets[] = {"same", "whole"};

std::vector<Option> only_for(std::string_view program, std::vector<Option> options) {
  for (Option& option : options) option.programs = {program};
  return options;
}

std::vector<Option> for_ddp(std::vector<Option> options) {
  return only_for("mlp_ddp", std::move(options));
}

}  // namespace

std::vector<Option> rank_data_options() {
  return for_ddp({
      {"global-batch-size",
       kDataGroup,
       "N",
       JsonKind::kNumber,
       with_range(fmt::format("samples in a step, all ranks together; the first ranks take one\n"
                              "more where they do not divide (default {})",
                              DataConfig{}.batch_size),
                  limits::kBatchSizes),
       [](const Given& given, TrainConfig& c) {
         c.data.batch_size = whole_number(given, limits::kBatchSizes);
         c.parallel.global_batch = true;
       },
       {"batch-size"}},
      {"batch-size",
       kDataGroup,
       "N",
       JsonKind::kNumber,
       with_range("samples in a step of each rank, instead of --global-batch-size",
                  limits::kBatchSizes),
       [](const Given& given, TrainConfig& c) {
         c.data.batch_size = whole_number(given, limits::kBatchSizes);
         c.parallel.batch_per_rank = true;
       },
       {"global-batch-size"}},
      {"data-seeding", kDataGroup, "global|per-rank", JsonKind::kString,
       "random data: every rank draws that of all and takes its rows, or\n"
       "each draws its own, seeded with --seed plus its rank (default\n"
       "global)",
       [](const Given& given, TrainConfig& c) {
         c.parallel.seed_per_rank = choice(given, kSeedings) == 1;
       }},
  });
}

std::vector<Option> spread_options() {
  return only_for(
      "mlp_dp",
      {
          {"batch-size", kDataGroup, "N", JsonKind::kNumber,
           with_range(fmt::format("samples in a step, all devices together (default {})",
                                  DataConfig{}.batch_size),
                      limits::kBatchSizes),
           [](const Given& given, TrainConfig& c) {
             c.data.batch_size = whole_number(given, limits::kBatchSizes);
           }},
          {"devices",
           kParallelGroup,
           "D0,D1,...",
           JsonKind::kString,
           "devices to spread each step over, cpu or cuda:N; a name given\n"
           "twice counts as two (default: the GPUs, else two CPU devices)",
           [](const Given& given, TrainConfig& c) { c.device.devices = device_names(given); },
           {"device"}},
          {"transport", kParallelGroup, "auto|nccl|peer", JsonKind::kString,
           "what carries parameters and gradients: NCCL between GPUs that are\n"
           "each given once, or copies from device to device and sums of our\n"
           "own; auto is NCCL where it can be (default auto)",
           [](const Given& given, TrainConfig& c) {
             constexpr Transport kOf[] = {Transport::kAuto, Transport::kNccl, Transport::kPeer};
             c.parallel.transport = kOf[choice(given, kSpreadTransports)];
           }},
          {"show-split", kParallelGroup, "", JsonKind::kBoolean,
           "print the rows that each device gets in each step",
           [](const Given& given, TrainConfig& c) {
             no_value(given);
             c.output.show_split = true;
           }},
      });
}

std::vector<Option> parallel_options() {
  return for_ddp({
      {"transport", kParallelGroup, "auto|nccl|mpi", JsonKind::kString,
       "what carries gradients: NCCL between GPUs, MPI through host memory;\n"
       "auto is NCCL where each rank has a GPU of its own (default auto)",
       [](const Given& given, TrainConfig& c) {
         c.parallel.transport = static_cast<Transport>(choice(given, kTransports));
       }},
      {"scheme", kParallelGroup, "ddp|zero1|factor", JsonKind::kString,
       "what ranks exchange: ddp sums gradients; zero1 too, and each rank\n"
       "updates a share of the weights and has the optimizer's memory for\n"
       "that share only; factor gathers the layers' inputs and output\n"
       "gradients, of which each rank makes the whole gradient (default ddp)",
       [](const Given& given, TrainConfig& c) {
         c.parallel.scheme = static_cast<RankScheme>(choice(given, kNamesOf<RankScheme>));
       }},
      {"bucket-mib", kParallelGroup, "X", JsonKind::kNumber,
       with_range("gradients are reduced together as soon as so many MiB of them are\n"
                  "complete, the first ones with 1 MiB (default 25)",
                  limits::kBucketMibs),
       [](const Given& given, TrainConfig& c) {
         c.parallel.bucket_mib = real_number(given, limits::kBucketMibs);
       }},
      {"first-bucket", kParallelGroup, "same|whole", JsonKind::kString,
       "whole: the first step reduces all gradients as one, as PyTorch's\n"
       "does (default same)",
       [](const Given& given, TrainConfig& c) {
         c.parallel.whole_first_bucket = choice(given, kFirstBuckets) == 1;
       }},
      {"grad-dtype", kParallelGroup, "fp32|bf16", JsonKind::kString,
       "bf16: gradients are rounded to bf16 for the all-reduce, which moves\n"
       "half the bytes (default fp32)",
       [](const Given& given, TrainConfig& c) {
         c.parallel.bf16_gradients = choice(given, kGradTypes) == 1;
       }},
      {"no-overlap", kParallelGroup, "", JsonKind::kBoolean,
       "reduce gradients after the whole backward pass, not during it",
       [](const Given& given, TrainConfig& c) {
         no_value(given);
         c.parallel.overlap = false;
       }},
  });
}

std::vector<Option> watchdog_options() {
  return {
      {"timeout",
       kParallelGroup,
       "SECONDS",
       JsonKind::kNumber,
       with_range("a run in which a collective, a step or the set-up takes longer\n"
                  "than this ends with exit code 75 (default 300)",
                  limits::kTimeouts),
       [](const Given& given, TrainConfig& c) {
         c.parallel.timeout_s = real_number(given, limits::kTimeouts);
       },
       {},
       {"mlp_dp", "mlp_ddp"}},
  };
}

std::vector<Option> rank_injected_options() {
  return for_ddp({
      {"slow-rank", kInjectedGroup, "R:MS", JsonKind::kString,
       fmt::format("a pause of MS milliseconds before each backward pass of rank R;\n{}",
                   text_of(limits::kDelays)),
       [](const Given& given, TrainConfig& c) { c.injected.slow_rank = slow_rank(given); }},
      {"jitter-ms", kInjectedGroup, "X", JsonKind::kNumber,
       with_range("before each backward pass a pause of random length, up to X, of its\n"
                  "own on every rank (default 0)",
                  limits::kDelays),
       [](const Given& given, TrainConfig& c) {
         c.injected.jitter_ms = real_number(given, limits::kDelays);
       }},
  });
}

}  // namespace barestep
