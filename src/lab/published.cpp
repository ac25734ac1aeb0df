#include "lab/published.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdint>

#include "core/config.h"
#include "core/units.h"
#include "kernels/make_device.h"
#include "lab/findings.h"
#include "lab/machine_card.h"
#include "lab/simulator.h"
#include "lab/workload.h"
#include "parallel/schemes/data_parallel.h"
#include "parallel/schemes/ddp.h"
#include "train/parameter_layout.h"
#include "train/trainer.h"

namespace barestep {
namespace {

constexpr const char* kZeroRecipe =
    "pytorch.org/tutorials/recipes/zero_redundancy_optimizer.html, 20 x Linear(2000, 2000)";
constexpr const char* kAmpRecipe =
    "pytorch.org/tutorials/recipes/recipes/amp_recipe.html, as run on a T4";
constexpr const char* kV100 =
    "github.com/m-a-r-o-u/ai-systems-examples, ddp_scaling_benchmark/EXPERIMENTS.md, 2 x V100 PCIe";

PublishedNumber exact(std::string what, std::string published, std::string ours,
                      std::string source) {
  const bool reproduced = published == ours;
  return {std::move(what), std::move(published), std::move(ours), reproduced, std::move(source)};
}

/// What PyTorch's caching allocator takes for a tensor: blocks of 512 bytes; from 10 MiB on cut
/// from pieces of 2 MiB, and not cut where less than 1 MiB would be left
/// (c10/cuda/CUDACachingAllocator.cpp).
std::int64_t block_bytes(std::int64_t bytes) {
  constexpr std::int64_t kMib = 1 << 20;
  const std::int64_t block = (bytes + 511) / 512 * 512;
  if (block < 10 * kMib) return block;
  const std::int64_t piece = (block + 2 * kMib - 1) / (2 * kMib) * (2 * kMib);
  return piece - block > kMib ? block : piece;
}

/// As the recipe prints it.
std::string whole_mb(std::int64_t bytes) {
  return fmt::format("{} MB", bytes / 1'000'000);
}

void add_splits(std::vector<PublishedNumber>& all) {
  struct Split {
    int devices;
    std::int64_t batch;
    const char* rows;
  };
  for (const Split& split :
       {Split{2, 30, "15,15"}, Split{2, 10, "5,5"}, Split{3, 30, "10,10,10"}, Split{3, 10, "4,4,2"},
        Split{8, 30, "4,4,4,4,4,4,4,2"}, Split{8, 10, "2,2,2,2,2"}}) {
    std::vector<std::int64_t> rows;
    for (const Rows& piece : chunk(split.batch, split.devices)) rows.push_back(piece.count);
    all.push_back(exact(fmt::format("DataParallel, {} rows on {} GPUs", split.batch, split.devices),
                        split.rows, fmt::format("{}", fmt::join(rows, ",")),
                        "pytorch.org/tutorials/beginner/blitz/data_parallel_tutorial.html"));
  }
}

void add_buckets(std::vector<PublishedNumber>& all) {
  struct Buckets {
    const char* what;
    std::vector<std::int64_t> bytes;
    std::vector<std::int64_t> limits;
    const char* tensors;
  };
  for (const Buckets& each : {Buckets{"DDP buckets of 100, 200, 100, 50 floats, limit 400 B",
                                      {400, 800, 400, 200},
                                      {400},
                                      "[[0], [1], [2], [3]]"},
                              Buckets{"DDP buckets of 4 x 10 floats, limits 40 and 80 B",
                                      {40, 40, 40, 40},
                                      {40, 80},
                                      "[[0], [1, 2], [3]]"}}) {
    all.push_back(exact(each.what, each.tensors,
                        fmt::format("{}", assign_buckets(each.bytes, each.limits)),
                        "PyTorch, test/distributed, ComputeBucketAssignmentTest"));
  }
}

void add_epochs(std::vector<PublishedNumber>& all) {
  for (const auto& [ranks, steps] : {std::pair{2, "32"}, {4, "16"}, {8, "8"}, {16, "4"}}) {
    const int rows = 32 * ranks;
    all.push_back(exact(fmt::format("steps of an epoch, 2048 samples, batch 32, {} ranks", ranks),
                        steps, std::to_string((2048 + rows - 1) / rows),
                        "PyTorch's DDP tutorial series, as printed by its runs"));
  }
}

void add_zero_bytes(std::vector<PublishedNumber>& all) {
  const std::int64_t weight = block_bytes(2000 * 2000 * 4), bias = block_bytes(2000 * 4);
  const std::int64_t model = 20 * (weight + bias);
  // Reduction buckets: two of one layer, nine of two; one of the two small ones fits a cached
  // block.
  const std::int64_t layer = 2000 * 2000 * 4 + 2000 * 4;
  const std::int64_t buckets = 9 * block_bytes(2 * layer) + (layer + 511) / 512 * 512 + weight;
  const std::int64_t before = 2 * model + buckets;
  const std::int64_t temporaries = 2 * weight;
  const auto add = [&](const char* what, const char* published, std::int64_t bytes) {
    all.push_back(exact(what, published, whole_mb(bytes), kZeroRecipe));
  };
  add("peak memory after the local model", "335 MB", model);
  add("... after DDP", "656 MB", model + buckets);
  add("... before the step", "992 MB", before);
  add("... after the step of Adam", "1697 MB", before + 2 * model + temporaries);
  add("... after the step with ZeRO on 2 ranks", "1361 MB", before + model + temporaries);
}

void add_amp_bytes(std::vector<PublishedNumber>& all) {
  const std::int64_t weight = 4096 * 4096 * 4, bias = 4096 * 4;
  const std::int64_t parameters = 3 * (weight + bias), activation = 512 * 4096 * 4;
  // Data and targets of 50 batches, and what lives in the backward pass of the last layer.
  const std::int64_t peak =
      2 * parameters + 100 * activation + weight + bias + 5 * activation + 2 * 512;
  all.push_back(exact("peak bytes in fp32", "1,350,681,600", grouped(peak), kAmpRecipe));
  // The net of the run before is still alive, through the graph of its last loss; weights and
  // activations are there in fp16 too.
  const std::int64_t halves = 3 * (weight / 2 + bias / 2), half_activations = 4 * activation / 2;
  const std::int64_t amp_peak =
      3 * parameters + 100 * activation + halves + half_activations + 2 * activation + 4 * 512;
  all.push_back(
      exact("peak bytes with AMP in fp16", "1,577,232,384", grouped(amp_peak), kAmpRecipe));
}

/// What ZeRO's step adds, by whole tensors shared out: the two moments and a temporary.
void add_zero_growth(std::vector<PublishedNumber>& all) {
  for (const auto& [ranks, growth] :
       {std::pair{1, "1006 MB"}, {2, "503 MB"}, {4, "251 MB"}, {8, "150 MB"}}) {
    const std::int64_t tensors = (20 + ranks - 1) / ranks;
    all.push_back(exact(fmt::format("memory that ZeRO's step adds, sharing among {}", ranks),
                        growth, whole_mb(3 * tensors * block_bytes(2000 * 2000 * 4)), kZeroRecipe));
  }
}

/// 20 x Linear(200, 200) beside cuBLAS's two workspaces; activations and small temporaries are the
/// rest, less than half a megabyte.
void add_adam_peaks(std::vector<PublishedNumber>& all) {
  constexpr double kRest = 0.5e6;
  const std::int64_t model = 20 * (block_bytes(200 * 200 * 4) + block_bytes(200 * 4));
  const std::int64_t workspaces = 2 * (std::int64_t{32} << 20);
  struct Kind {
    const char* what;
    std::int64_t published, models;  // those of earlier runs are alive
  };
  for (const Kind& kind : {Kind{"in a loop", 80'436'224, 4}, Kind{"foreach", 96'242'688, 9},
                           Kind{"fused", 105'991'680, 12}}) {
    const std::int64_t ours = kind.models * model + workspaces;
    all.push_back({.what = fmt::format("peak bytes of Adam {}, to 500,000", kind.what),
                   .published = grouped(kind.published),
                   .ours = grouped(ours),
                   .reproduced = std::abs(static_cast<double>(kind.published - ours)) < kRest,
                   .source = "20 x Linear(200, 200) under PyTorch's profiler"});
  }
}

std::string parameters_of(const std::vector<std::int64_t>& widths) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) count += (widths[i] + 1) * widths[i + 1];
  return grouped(count);
}

class Silent final : public TrainObserver {
 public:
  void on_step(const StepReport& /*report*/) override {}
  void on_evaluation(const EvaluationReport& /*report*/) override {}
};

double simulated_s(const TrainConfig& config, const MachineCard& card, int ranks) {
  const WorkloadPrograms programs(config, ranks == 1 ? TrainerKind::kSingle : TrainerKind::kDdp,
                                  ranks, DeviceKind::kCuda);
  return card.host_s + simulate(programs.step(), [&](const Node& node) {
                         return node_s(node, card, ranks);
                       }).step_s;
}

double simulated_v100_s(const MachineCard& card, std::int64_t batch, int ranks) {
  TrainConfig config;
  config.model.layers = {4096, 4096, 4096, 4096, 2048};
  config.model.last_relu = false;
  config.optimizer.kind = OptimizerKind::kSgd;
  config.data.batch_size = batch * ranks;
  config.parallel.bucket_mib = 50;
  return simulated_s(config, card, ranks);
}

}  // namespace

std::vector<PublishedNumber> exact_numbers() {
  std::vector<PublishedNumber> all;
  all.push_back(exact("parameters of 6 x Linear(8192, 8192)", "402,702,336",
                      parameters_of(std::vector<std::int64_t>(7, 8192)), "the course's model"));
  all.push_back(exact("parameters of the V100 experiment", "58,734,592",
                      parameters_of({4096, 4096, 4096, 4096, 2048}), kV100));
  add_splits(all);
  add_buckets(all);
  add_epochs(all);
  add_zero_bytes(all);
  add_zero_growth(all);
  add_amp_bytes(all);
  add_adam_peaks(all);
  return all;
}

PublishedNumber zero_recipe_sum() {
  constexpr std::int64_t kRecipeWidth = 2000;
  constexpr int kRecipeLayers = 20;
  constexpr double kPublished = -3453.6123046875, kTolerance = 0.1;
  TrainConfig config;
  config.model.dim = kRecipeWidth;
  config.model.depth = kRecipeLayers;
  config.model.activation = Activation::kNone;
  config.data.batch_size = 20;
  config.training.steps = 1;
  config.optimizer.lr = 0.01;
  config.device.device = "cpu";
  const WorkloadPrograms programs(config, TrainerKind::kSingle, 1, DeviceKind::kCpu);
  const auto device = make_device(config.device);
  Trainer trainer(config, programs.steps(), {device.get()}, nullptr, nullptr);
  Silent silent;
  trainer.run(silent);
  FlatWeights weights = trainer.weights();
  // The recipe adds all parameters up as one tensor, whose broadcasting counts a bias once a row.
  const ParameterLayout& layout = programs.steps().spec().model.layout;
  double sum = 0;
  for (int layer = 0; layer < kRecipeLayers; ++layer) {
    for (const float each : weight_in(weights, layout, layer)) sum += each;
    for (const float each : bias_in(weights, layout, layer)) sum += kRecipeWidth * double{each};
  }
  return {.what = "sum of the parameters after one step, seed 0, to 0.1",
          .published = fmt::format("{:.4f}", kPublished),
          .ours = fmt::format("{:.4f}", sum),
          .reproduced = std::abs(sum - kPublished) < kTolerance,
          .source = kZeroRecipe};
}

std::vector<PublishedNumber> recipes_elsewhere() {
  std::vector<PublishedNumber> all;
  TrainConfig amp;
  amp.model.dim = 4096;
  amp.model.depth = 3;
  amp.model.last_relu = false;
  amp.optimizer.kind = OptimizerKind::kSgd;
  amp.data.batch_size = 512;
  constexpr int kSteps = 150;
  const double t4_s = kSteps * simulated_s(amp, load_card("t4"), 1);
  all.push_back({.what = "150 steps of the AMP recipe in fp32, on a T4",
                 .published = "7.02 s",
                 .ours = time_text(t4_s) + " (simulated, at half of the data sheet's flops)",
                 .source = kAmpRecipe});
  // Adam reads four numbers and writes three for each parameter.
  constexpr double kParameters = 10 * 1024.0 * 1024;
  const double adam_s = 28 * kParameters / load_card("a100-nvlink").memory_bytes_per_s;
  for (const auto& [what, published] : {std::pair{"eager", "747 us"}, {"compiled", "392 us"}}) {
    all.push_back({.what = fmt::format("step of Adam on 10 x Linear(1024, 1024), {}", what),
                   .published = published,
                   .ours = time_text(adam_s) + " (simulated, one pass on an A100)",
                   .source = "pytorch.org/tutorials/recipes/compiling_optimizer.html, a GPU that "
                             "is not named"});
  }
  return all;
}

std::vector<PublishedNumber> v100_scaling() {
  const MachineCard card = load_card("v100-pcie");
  std::vector<PublishedNumber> all;
  struct Run {
    std::int64_t batch;
    const char *one, *two, *factor;
  };
  for (const Run& run :
       {Run{256, "7.60 ms", "41.40 ms", "0.37x"}, Run{4096, "99.77 ms", "114.24 ms", "1.75x"}}) {
    const double one = simulated_v100_s(card, run.batch, 1);
    const double two = simulated_v100_s(card, run.batch, 2);
    const auto add = [&](const char* what, const char* published, std::string ours) {
      all.push_back({.what = fmt::format("{}, batch {} on each", what, run.batch),
                     .published = published,
                     .ours = std::move(ours) + " (simulated)",
                     .source = kV100});
    };
    add("a step on one GPU", run.one, time_text(one));
    add("a step on two GPUs", run.two, time_text(two));
    add("speed-up", run.factor, factor_text(2 * one / two));
  }
  return all;
}

}  // namespace barestep
