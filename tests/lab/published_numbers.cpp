#include "lab/published_numbers.h"

#include <nlohmann/json.hpp>

#include "core/attention.h"
#include "core/config.h"
#include "core/error.h"
#include "core/rank_checker.h"
#include "core/units.h"
#include "kernels/make_device.h"
#include "lab/experiments/calculations.h"
#include "lab/predict/machine_card.h"
#include "lab/predict/schedule_check.h"
#include "lab/predict/simulator.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"
#include "model/parameters.h"
#include "parallel/schemes/data_parallel.h"
#include "parallel/schemes/ddp.h"
#include "parallel/schemes/scheme_of.h"
#include "parallel/schemes/zero.h"
#include "support/temp_dir.h"
#include "train/pass_schedule.h"
#include "train/schedule.h"
#include "train/trainer.h"

namespace barestep {
namespace {

constexpr std::int64_t kRecipeWidth = 2000;
constexpr int kRecipeLayers = 20;

/// A row of the file with our number.
PublishedNumber row_of(std::string what, PublishedKind kind, std::string ours) {
  static const std::vector<PublishedNumber> published = published_numbers();
  const auto found = std::ranges::find(published, what, &PublishedNumber::what);
  BARESTEP_REQUIRE(found != published.end(), "published.json lacks '" + what + "'");
  PublishedNumber row = *found;
  row.kind = kind;
  row.ours = std::move(ours);
  return row;
}

void add_exact(std::vector<PublishedNumber>& all, PublishedKind kind, std::string what,
               std::string ours) {
  all.push_back(row_of(std::move(what), kind, std::move(ours)));
  all.back().agrees = all.back().published == all.back().ours;
}

void reproduced(std::vector<PublishedNumber>& all, std::string what, std::string ours) {
  add_exact(all, PublishedKind::kReproduced, std::move(what), std::move(ours));
}

void computed(std::vector<PublishedNumber>& all, std::string what, std::string ours) {
  add_exact(all, PublishedKind::kComputed, std::move(what), std::move(ours));
}

void add_splits(std::vector<PublishedNumber>& all) {
  for (const int devices : {2, 3, 8}) {
    for (const int batch : {30, 10}) {
      std::vector<std::int64_t> rows;
      for (const Rows& piece : DataParallel(devices, false).split(batch)) {
        rows.push_back(piece.count);
      }
      reproduced(all, fmt::format("DataParallel, {} rows on {} GPUs", batch, devices),
                 fmt::format("{}", fmt::join(rows, ",")));
    }
  }
}

void add_buckets(std::vector<PublishedNumber>& all) {
  struct Buckets {
    const char* what;
    std::vector<std::int64_t> bytes;
    std::vector<std::int64_t> limits;
  };
  // PyTorch's two other tests mix floats and doubles; gradients here are floats.
  for (const Buckets& each :
       {Buckets{
            "DDP buckets of 100, 200, 100, 50 floats, limit 400 B", {400, 800, 400, 200}, {400}},
        Buckets{"DDP buckets of 4 x 10 floats, limits 40 and 80 B", {40, 40, 40, 40}, {40, 80}}}) {
    reproduced(all, each.what, fmt::format("{}", assign_buckets(each.bytes, each.limits)));
  }
}

/// Linear(20, 1) on 2048 samples, with 32 per step on each of 8 ranks.
void add_epoch(std::vector<PublishedNumber>& all) {
  TrainConfig config;
  config.model.layers = {20, 1};
  config.data.kind = DataKind::kNpy;
  config.data.batch_size = 32;
  config.parallel.batch_per_rank = true;
  config.training.epochs = 1;
  StepSpec spec = spec_of_rank(config, DeviceKind::kCpu, nullptr, 0, 8);
  spec.input.train_rows = 2048;
  const Ddp scheme{DdpSettings()};
  const StepPrograms programs(spec, &scheme);
  reproduced(all, "steps of an epoch, 2048 samples, batch 32 on each of 8 ranks",
             std::to_string(Schedule(config.training, programs).steps()));
}

/// Memory that PyTorch's caching allocator takes for a tensor: blocks of 512 bytes. From 10 MiB on
/// they are cut from pieces of 2 MiB, and not cut if less than 1 MiB would remain
/// (c10/cuda/CUDACachingAllocator.cpp).
std::int64_t block_bytes(std::int64_t bytes) {
  constexpr std::int64_t kMib = 1 << 20;
  const std::int64_t block = (bytes + 511) / 512 * 512;
  if (block < 10 * kMib) return block;
  const std::int64_t piece = (block + 2 * kMib - 1) / (2 * kMib) * (2 * kMib);
  return piece - block > kMib ? block : piece;
}

/// Buckets of the gradients of `layers` equal layers, reduced last layer first and bias first.
std::vector<std::int64_t> ddp_bucket_bytes(int layers, std::int64_t weight, std::int64_t bias) {
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < layers; ++i) sizes.insert(sizes.end(), {bias, weight});
  std::vector<std::int64_t> buckets;
  for (const std::vector<int>& members :
       assign_buckets(sizes, std::array{kFirstBucketBytes, kBucketBytes})) {
    std::int64_t& bytes = buckets.emplace_back(0);
    for (const int member : members) bytes += at(sizes, member);
  }
  return buckets;
}

void add_zero_bytes(std::vector<PublishedNumber>& all) {
  constexpr std::int64_t kWeight = kRecipeWidth * kRecipeWidth * 4, kBias = kRecipeWidth * 4;
  const std::int64_t weight = block_bytes(kWeight), bias = block_bytes(kBias);
  const std::int64_t model = kRecipeLayers * (weight + bias);
  std::int64_t buckets = 0;
  for (const std::int64_t bytes : ddp_bucket_bytes(kRecipeLayers, kWeight, kBias)) {
    buckets += block_bytes(bytes);
  }
  // Nothing published says that the last bucket, of one layer, fits a block that is already cached
  // and so takes no whole pieces. The rows that assume it say so.
  buckets -= block_bytes(kWeight + kBias) - (kWeight + kBias + 511) / 512 * 512;
  const std::int64_t before = 2 * model + buckets;
  const std::int64_t temporaries = 2 * weight;
  const auto add = [&](const char* when, std::int64_t bytes, const char* assumption = "") {
    computed(all, fmt::format("ZeRO recipe, peak memory {}{}", when, assumption),
             fmt::format("{} MB", bytes / 1'000'000));
  };
  constexpr const char* kAssumption = ", assuming that the last bucket takes a cached block";
  add("after the local model", model);
  add("after DDP", model + buckets, kAssumption);
  add("before the step", before, kAssumption);
  add("after the step of Adam", before + 2 * model + temporaries, kAssumption);
  add("after the step with ZeRO on 2 ranks", before + model + temporaries, kAssumption);
}

/// The share of a model's numbers of a category that a scheme leaves on one of `ranks` ranks.
double held_share(const Scheme& scheme, Category category, int ranks) {
  ModelSpec model;
  model.widths = {1 << 12, 1 << 12};
  const Parameters parameters = parameters_of(model);
  double held = 0;
  for (const FlatRange& range : scheme.held(category, parameters, 0, ranks)) {
    held += static_cast<double>(range.count);
  }
  return held * bytes_of(DType::kF32) / static_cast<double>(parameters.bytes());
}

/// What ZeRO's stages leave on each of 64 ranks of the 16 bytes that mixed precision takes there
/// for a parameter: 2 for itself, 2 for its gradient, 12 for the optimizer's fp32 copy and moments.
/// The shares are those of our schemes.
void add_zero_stages(std::vector<PublishedNumber>& all) {
  constexpr double kParameters = 7.5e9;
  const auto share = [](const Scheme& scheme, Category category) {
    return held_share(scheme, category, 64);
  };
  const auto add = [&](const char* by, const Scheme& scheme) {
    const double bytes = 2 * share(scheme, Category::kParameters) +
                         2 * share(scheme, Category::kGradients) +
                         12 * share(scheme, Category::kOptimizer);
    computed(all, fmt::format("ZeRO, 7.5e9 parameters on each of 64 ranks, {}", by),
             fmt::format("{:.1f} GB", kParameters * bytes / 1e9));
  };
  add("DDP", Ddp({}));
  add("stage 1", Zero(1, {}));
  add("stage 2", Zero(2, {}));
  add("stage 3", Zero(3, {}));
}

/// By DeepSpeed's rules a parameter takes 4 bytes in 16 bits with its gradient, and 16 of state in
/// fp32; its stage 3 keeps 18 and gathers the largest layer. The shares are those of our schemes.
void add_deepspeed_estimates(std::vector<PublishedNumber>& all) {
  constexpr double kParameters = 2851e6, kLargestLayer = 32e6;
  constexpr int kRanks = 8;
  const auto add = [&](const char* stage, double bytes) {
    computed(
        all,
        fmt::format("DeepSpeed's estimate, 2851e6 parameters on each of 8 GPUs, stage {}", stage),
        fmt::format("{:.2f} GB", bytes / (1 << 30)));
  };
  const Zero two(2, {}), three(3, {});
  add("2", kParameters * (4 * held_share(two, Category::kParameters, kRanks) +
                          16 * held_share(two, Category::kOptimizer, kRanks)));
  add("3", 4 * kLargestLayer + 18 * kParameters * held_share(three, Category::kParameters, kRanks));
}

/// The bytes that a rank sends in a step of six layers, over those of their gradients.
double sent_over_gradients(SchemeKind scheme, int ranks) {
  TrainConfig config;
  config.model.dim = 512;
  config.model.depth = 6;
  config.data.batch_size = ranks;
  config.training.update = Update::kSeparate;
  config.parallel.scheme = scheme;
  const WorkloadPrograms programs({.ranks = ranks, .config = config});
  return static_cast<double>(bytes_sent(programs.step(), programs.mesh())) /
         static_cast<double>(programs.steps().parameter_list().bytes());
}

/// Counted in programs on 8 ranks; the sum of the losses is lost in rounding.
void add_traffic(std::vector<PublishedNumber>& all) {
  constexpr int kRanks = 8;
  const double ddp = sent_over_gradients(SchemeKind::kDdp, kRanks);
  const double sharded = sent_over_gradients(SchemeKind::kZero1, kRanks);
  reproduced(all, "all-reduce of 8 ranks, bytes that a rank sends for a byte, 2 (n - 1) / n",
             fmt::format("{:.2f}", ddp));
  reproduced(all,
             "reduce-scatter and all-gather of 8 ranks, bytes that a rank sends for a byte, twice "
             "(n - 1) / n",
             fmt::format("{:.2f}", sharded));
  reproduced(all, "ZeRO, bytes that a rank sends with stage 2, over those without",
             fmt::format("{:.3g}x", sent_over_gradients(SchemeKind::kZero2, kRanks) / ddp));
}

/// The flops of rank 0's step before its loss or after it, and the bytes that it sends meanwhile.
struct PricedPart {
  double flops = 0, bytes = 0;
};

PricedPart priced_part(const Run& run, bool is_forward) {
  const WorkloadPrograms programs(run);
  const auto empty = [&](const char* name) { return Program(name, programs.step().buffers()); };
  Program computing = empty("computing"), sending = empty("sending");
  bool is_after_loss = false;
  for (Node node : programs.step().nodes()) {
    is_after_loss = is_after_loss || node.phase == Phase::kLoss;
    if (is_after_loss == is_forward) continue;
    node.waits.clear();
    if (std::holds_alternative<Collective>(node.op)) {
      sending.add(std::move(node));
    } else if (node.phase == Phase::kForward || node.phase == Phase::kBackward) {
      computing.add(std::move(node));
    }
  }
  return {.flops = static_cast<double>(price_of(computing).total.flops),
          .bytes = static_cast<double>(bytes_sent(sending, programs.mesh()))};
}

/// From where a part of a layer's products takes longer than its messages in 16 bits. Counted as
/// the difference of programs of four layers and of two, since the first layers of a model need no
/// gradient of their input.
void add_communication_bounds(std::vector<PublishedNumber>& all) {
  constexpr int kRanks = 512;
  constexpr std::int64_t kWidth = 1 << 16;  // so that products are nearly all of the flops
  constexpr double kFlopsPerS = 4.6e14, kBytesPerS = 1.8e11;
  struct Bound {
    const char* what;
    SchemeKind scheme;
    bool is_tensor, is_forward;
    double has;  // rows of a rank, or its part of the width
  };
  for (const Bound& bound :
       {Bound{"data parallel on TPU v5p, batch of each from which communication hides, to 50 rows",
              SchemeKind::kDdp, false, false, 1},
        Bound{"FSDP on TPU v5p, batch of each from which forward's communication hides, to 50 rows",
              SchemeKind::kZero3, false, true, 1},
        Bound{"tensor parallel on TPU v5p, width of each from which forward's communication hides, "
              "to 50",
              SchemeKind::kDdp, true, true, 1.0 * kWidth / kRanks}}) {
    const auto part = [&](std::int64_t layers) {
      TrainConfig config;
      config.model.dim = kWidth;
      config.model.depth = layers;
      config.data.batch_size = kRanks;
      config.training.update = Update::kSeparate;
      config.parallel.scheme = bound.scheme;
      if (bound.is_tensor) config.parallel.tensor = kRanks;
      // DDP's gradients may have 16 bits, whatever products have.
      config.parallel.bf16_gradients = !bound.is_forward;
      if (bound.is_forward) config.device.precision = Precision::kBf16;
      return priced_part({.ranks = kRanks, .config = config}, bound.is_forward);
    };
    const PricedPart two = part(2), four = part(4);
    const double flops = four.flops - two.flops;
    const double bytes = four.bytes - two.bytes;
    const double needed = bound.has * (bytes / kBytesPerS) / (flops / kFlopsPerS);
    reproduced(all, bound.what, fmt::format("{:.0f}", std::round(needed / 50) * 50));
  }
}

/// Gradients go to the servers and parameters come back, one worker after the other; `servers` of
/// them take equal parts at the same time.
std::string server_exchange_text(int senders, int servers) {
  constexpr double kBytes = 160e6, kBytesPerS = 16e9;
  return fmt::format("{:.0f} ms", 1e3 * 2 * senders * kBytes / servers / kBytesPerS);
}

void add_servers(std::vector<PublishedNumber>& all) {
  const auto add = [&](const char* by, std::string ours) {
    computed(all, fmt::format("parameter server, 160 MB, {}", by), std::move(ours));
  };
  add("one of 4 GPUs", server_exchange_text(3, 1));
  add("the CPU of 4 GPUs", server_exchange_text(4, 1));
  add("each of 4 GPUs for a part", server_exchange_text(3, 4));
  // The approximation there: a ring of many GPUs sends the gradients twice.
  add("a ring of 8 GPUs instead", fmt::format("{:.0f} ms", 1e3 * 2 * 160e6 / (3 * 18e9)));
}

/// The share of a step in which stages of one layer each wait, if backward takes twice as long as
/// forward and messages take no time.
std::string bubble_text(const PipelineSpec& pipeline) {
  TrainConfig config;
  config.model.dim = 16;
  config.model.depth = pipeline.stages;
  config.data.batch_size = pipeline.micro_batches;
  config.training.update = Update::kSeparate;
  config.parallel.pipeline = pipeline.stages;
  config.parallel.schedule = pipeline.schedule;
  config.parallel.micro_batches = pipeline.micro_batches;
  std::vector<std::unique_ptr<WorkloadPrograms>> programs;
  std::vector<RankProgram> ranks;
  for (int rank = 0; rank < pipeline.stages; ++rank) {
    programs.push_back(
        std::make_unique<WorkloadPrograms>(Run{.ranks = pipeline.stages, .config = config}, rank));
    ranks.push_back({programs.back()->step(), programs.back()->mesh()});
  }
  const auto seconds = [](const Program&, const Node& node) {
    if (op_if<Gemm>(node.op) == nullptr) return 0.0;
    // The first layer needs no gradient of its input.
    return node.phase == Phase::kBackward && node.block == "net.0" ? 2.0 : 1.0;
  };
  const SimulatedStep step = simulate(ranks, seconds).front();
  return percent_text(step.account.waits_for_others_s() / step.step_s);
}

/// The micro-batches whose activations the first stage keeps at a time.
std::string in_flight_text(const PipelineSpec& pipeline) {
  const PassSchedule schedule = schedules_of_stages(pipeline).front();
  const auto places = places_of_activations(schedule, pipeline.micro_batches, true);
  return std::to_string(std::ranges::max(places.front()) + 1);
}

void add_pipelines(std::vector<PublishedNumber>& all) {
  const PipelineSpec gpipe{.stages = 4, .micro_batches = 16, .schedule = PipelineSchedule::kGPipe};
  const PipelineSpec one_by_one{.stages = 8, .micro_batches = 32};
  reproduced(all, "GPipe, bubble of 4 partitions and 16 micro-batches by (K - 1) / (M + K - 1)",
             bubble_text(gpipe));
  reproduced(all, "1F1B, bubble of 8 stages and 32 micro-batches by (p - 1) / (m + p - 1)",
             bubble_text(one_by_one));
  reproduced(all, "GPipe, micro-batches in flight of 16, as many as there are",
             in_flight_text(gpipe));
  reproduced(all, "1F1B, micro-batches in flight of 32, as many as stages",
             in_flight_text(one_by_one));
}

constexpr PipelineSpec kZeroBubbleCase{.stages = 8, .micro_batches = 32};

PipelineSpec zero_bubble_case(PipelineSchedule schedule) {
  PipelineSpec pipeline = kZeroBubbleCase;
  pipeline.schedule = schedule;
  return pipeline;
}

/// The time in which a stage waits over that of its passes, if forward, backward and the gradients
/// of weights take equally long and messages no time.
double bubble_rate(PipelineSchedule schedule) {
  const WrittenSchedule written = built_in_schedule(zero_bubble_case(schedule), {}, false);
  return examine(written).step / (3 * written.micro_batches) - 1;
}

void add_zero_bubble(std::vector<PublishedNumber>& all) {
  constexpr PipelineSchedule kPlain = PipelineSchedule::kOneForwardOneBackward,
                             kSplit = PipelineSchedule::kZeroBubbleH1;
  reproduced(all, "1F1B, bubble over passes of 8 stages and 32 micro-batches by (p - 1) / m",
             percent_text(bubble_rate(kPlain)));
  reproduced(all, "ZB1P, bubble over passes of 8 stages and 32 micro-batches by (p - 1) / 3 m",
             percent_text(bubble_rate(kSplit)));
  const auto kept = [](PipelineSchedule schedule) {
    const WrittenSchedule written = built_in_schedule(zero_bubble_case(schedule), {}, false);
    return std::ranges::max(examine(written).kept);
  };
  reproduced(all, "ZB1P, activations of the fullest stage over 1F1B's",
             fmt::format("{:.3g}x", static_cast<double>(kept(kSplit)) / kept(kPlain)));
  const auto messages = [](PipelineSchedule schedule) {
    double sends = 0;
    const WrittenSchedule written = built_in_schedule(zero_bubble_case(schedule), {}, true);
    for (const auto& list : written.stages) {
      sends += static_cast<double>(std::ranges::count_if(
          list, [](const ScheduleEntry& each) { return each.sends.has_value(); }));
    }
    return sends;
  };
  reproduced(all, "ZB1P, messages over 1F1B's",
             fmt::format("{:.3g}x", messages(kSplit) / messages(kPlain)));
}

/// The sums over tensor ranks of a pair of layers, by phase, counted in a program of two pairs. The
/// first pair needs no gradient of its input.
void add_tensor_pair(std::vector<PublishedNumber>& all) {
  TrainConfig config;
  config.model.dim = 16;
  config.model.depth = 4;
  config.training.update = Update::kSeparate;
  config.parallel.tensor = 2;
  const WorkloadPrograms programs({.ranks = 2, .config = config});
  int forward = 0, backward = 0;
  for (const Node& node : programs.step().nodes()) {
    const auto* const sum = op_if<AllReduce>(node.op);
    if (sum == nullptr || sum->axis != Axis::kTensor) continue;
    ++(sum->name.ends_with("output") ? forward : backward);
  }
  reproduced(all, "Megatron-LM, all-reduces of a pair of layers in forward and in backward",
             fmt::format("{}, {}", forward / 2, backward));
}

/// By the tensors that FlashAttention's benchmark has at its peak, in 16 bits: with standard
/// attention four of scores and ten of the operands' size; with flash attention 13 of the latter,
/// one more if gradients of queries are summed in fp32 over several tiles, and two numbers a row.
std::string attention_memory_text(AttentionForm form, double length) {
  constexpr double kSequences = 16, kHeads = 8, kWidth = 64, kMib = 1 << 20;
  const double rows = kSequences * kHeads * length;
  const double bytes = form == AttentionForm::kStandard
                           ? 2 * (4 * rows * length + 10 * rows * kWidth)
                           : 2 * 13 * rows * kWidth + 8 * rows;
  return fmt::format("{} MB", static_cast<std::int64_t>(bytes / kMib));
}

void add_attention_memory(std::vector<PublishedNumber>& all) {
  const auto add = [&](AttentionForm form, std::int64_t length) {
    computed(all,
             fmt::format("FlashAttention, memory of 16 x 8 heads 64 wide, {}, length {}",
                         name_of(form), length),
             attention_memory_text(form, static_cast<double>(length)));
  };
  for (const int length : {128, 512, 1024, 4096}) add(AttentionForm::kStandard, length);
  for (const int length : {512, 1024, 4096, 65536}) add(AttentionForm::kFlash, length);
}

TrainConfig transformer_of(std::int64_t dim, std::int64_t heads, std::int64_t blocks,
                           std::int64_t length) {
  TrainConfig config;
  config.parallel.scheme = SchemeKind::kSingle;
  config.model = {.dim = dim,
                  .depth = blocks,
                  .block = BlockKind::kTransformer,
                  .heads = heads,
                  .length = length,
                  .attention = AttentionForm::kStandard};
  config.data.batch_size = 1;
  config.training.update = Update::kSeparate;
  return config;
}

/// GPT-2 consists of our blocks, an embedding of 50,257 tokens, one of 1,024 positions, and a norm.
void add_gpt2(std::vector<PublishedNumber>& all) {
  constexpr std::int64_t kTokens = 50'257, kPositions = 1024, kWidth = 768, kBlocks = 12,
                         kHeads = 12, kSequences = 4, kLength = 64;
  const WorkloadPrograms programs({.config = transformer_of(kWidth, kHeads, kBlocks, kLength)});
  const std::int64_t parameters =
      programs.steps().parameter_list().size() + (kTokens + kPositions + 2) * kWidth;
  reproduced(all, "GPT-2 of 12 blocks 768 wide, parameters", std::to_string(parameters));
  // A block keeps 18 rows of the width, four means and deviations, and scores twice; outside are
  // two rows, logits twice, a norm's mean and deviation, and losses.
  constexpr std::int64_t kRows = kSequences * kLength;
  constexpr std::int64_t kKept = (2 + 18 * kBlocks) * kRows * kWidth + (4 * kBlocks + 2) * kRows +
                                 2 * kBlocks * kHeads * kRows * kLength + 2 * kRows * kTokens +
                                 kRows;
  computed(all, "GPT-2 of 12 blocks 768 wide, numbers kept for backward of 4 x 64 tokens",
           std::to_string(kKept));
}

/// Of a layer, in units of 2048 rows of its width.
void add_layer_activations(std::vector<PublishedNumber>& all) {
  constexpr double kLength = 2048, kOthers = 34;
  struct Layer {
    const char* name;
    double heads, width;
  };
  for (const Layer& each : {Layer{"GPT-3", 96, 12288}, Layer{"MT-NLG", 128, 20480}}) {
    const double scores = 5 * each.heads * kLength / each.width;
    computed(all, fmt::format("activations of scores, {}, by 5 a s / h", each.name),
             fmt::format("{:.0f}", scores));
    computed(
        all,
        fmt::format("share of scores in a layer's activations of 34 + 5 a s / h, {}", each.name),
        fmt::format("{:.0f} %", 100 * scores / (kOthers + scores)));
  }
}

/// Counted in a program of one block.
void add_layer_flops(std::vector<PublishedNumber>& all) {
  const WorkloadPrograms programs({.config = transformer_of(12288, 96, 1, 2048)});
  double flops = 0;
  for (const Node& node : programs.step().nodes()) {
    const bool has_products = op_if<Gemm>(node.op) != nullptr ||
                              op_if<Attention>(node.op) != nullptr ||
                              op_if<AttentionGrad>(node.op) != nullptr;
    if (has_products) flops += static_cast<double>(cost_of(node.op).flops);
  }
  reproduced(all, "products of a layer of GPT-3 on 2048 tokens, by 72 s h^2 (1 + s / 6 h)",
             fmt::format("{:.1f} TFLOP", flops / 1e12));
}

double simulated_s(const TrainConfig& config, const MachineCard& card, int ranks) {
  Run run{.ranks = ranks, .on_gpu = true, .config = config};
  if (ranks == 1) run.config.parallel.scheme = SchemeKind::kSingle;
  return predicted_run(run, card).step_s;
}

/// A published number next to the simulator's, which is not a measurement.
PublishedNumber cited(std::string what, const std::string& simulated, std::string_view how) {
  return row_of(std::move(what), PublishedKind::kCited,
                fmt::format("{} (simulated, {})", simulated, how));
}

/// How a simulated number was obtained if the card was fitted to some of the published ones.
constexpr const char* kFitted = "fitted to it";
constexpr const char* kPredicted = "predicted by the fit";
constexpr const char* kOfBoth = "of a fitted step and a predicted one";

void add_v100_run(std::vector<PublishedNumber>& all, std::int64_t batch) {
  const MachineCard card = load_card("v100-pcie");
  TrainConfig config;
  config.model.layers = {4096, 4096, 4096, 4096, 2048};
  config.model.last_relu = false;
  config.optimizer.kind = OptimizerKind::kSgd;
  config.data.batch_size = batch;
  const double one_s = simulated_s(config, card, 1);
  config.data.batch_size = 2 * batch;
  const double two_s = simulated_s(config, card, 2);
  // The card's product rate comes from one GPU's step at the large batch, its bandwidth from the
  // step of two GPUs at the small batch.
  const bool is_large = batch > 256;
  const auto what = [&](const char* of) {
    return fmt::format("two V100, {}, batch {} on each", of, batch);
  };
  all.push_back(cited(what("a step on one"), time_text(one_s), is_large ? kFitted : kPredicted));
  all.push_back(cited(what("a step on two"), time_text(two_s), is_large ? kPredicted : kFitted));
  all.push_back(cited(what("speed-up"), factor_text(2 * one_s / two_s), kOfBoth));
}

/// Whether the card's GPU can have made these flops in the published time.
std::string within_peak(double flops, double published_s, const MachineCard& card) {
  const double needed = flops / published_s;
  return fmt::format("the published time takes {}, {} its {} in fp32", rate_text(needed, "FLOP/s"),
                     needed > card.flops_per_s ? "more than" : "within",
                     rate_text(card.flops_per_s, "FLOP/s"));
}

void add_amp_run(std::vector<PublishedNumber>& all) {
  constexpr int kSteps = 150;
  constexpr double kPublishedS = 7.738;
  const MachineCard card = load_card("a100-nvlink");
  TrainConfig config;
  config.parallel.scheme = SchemeKind::kSingle;
  config.model.dim = 4096;
  config.model.depth = 3;
  config.model.last_relu = false;
  config.optimizer.kind = OptimizerKind::kSgd;
  config.data.batch_size = 4096;
  const WorkloadPrograms programs({.on_gpu = true, .config = config});
  double flops = 0;
  for (const Node& node : programs.step().nodes()) {
    if (node.phase != Phase::kData) flops += static_cast<double>(cost_of(node.op).flops);
  }
  all.push_back(cited("150 steps of the AMP recipe in fp32, batch 4096",
                      time_text(kSteps * simulated_s(config, card, 1)),
                      "on an A100; " + within_peak(kSteps * flops, kPublishedS, card)));
}

/// Forward and backward of one layer's attention, on 64 sequences.
void add_attention_flops(std::vector<PublishedNumber>& all) {
  constexpr std::int64_t kLength = 1024, kRows = 64 * kLength, kWidth = 1024, kHeads = 16;
  for (const AttentionForm form : kValuesOf<AttentionForm>) {
    const AttentionShape shape{.heads = kHeads, .length = kLength, .form = form};
    const Tensor qkv{0, 0, kRows, 3 * kWidth}, out{1, 0, kRows, kWidth};
    const std::int64_t flops =
        flops_of(Attention{.out = out, .kept = {}, .qkv = qkv, .shape = shape}) +
        flops_of(AttentionGrad{
            .grad_qkv = qkv, .qkv = qkv, .out = out, .grad_out = out, .kept = {}, .shape = shape});
    all.push_back(row_of(
        fmt::format("FlashAttention, GPT-2 medium, flops of {} attention", name_of(form)),
        PublishedKind::kDoesNotReproduce,
        fmt::format("{:.0f} GFLOP (counted, forward and backward of a layer on 64 sequences)",
                    static_cast<double>(flops) / 1e9)));
  }
}

void add_schedules_that_differ(std::vector<PublishedNumber>& all) {
  const auto add = [&](std::string what, std::string ours) {
    all.push_back(row_of(std::move(what), PublishedKind::kDoesNotReproduce, std::move(ours)));
  };
  // The last stage cannot begin before the others' first forward passes have ended.
  constexpr double kMinBubble =
      (kZeroBubbleCase.stages - 1) / (3.0 * kZeroBubbleCase.micro_batches);
  add("ZB2P, bubble over passes of 8 stages and 32 micro-batches",
      fmt::format("{} at least within a step (counted; ZB1P reaches it); 0 only across steps",
                  percent_text(kMinBubble)));
  const PipelineSpec one_by_one = zero_bubble_case(PipelineSchedule::kOneForwardOneBackward),
                     gpipe = zero_bubble_case(PipelineSchedule::kGPipe);
  add("1F1B against GPipe, idle time of 8 stages and 32 micro-batches",
      fmt::format("{} and {} of the step (counted); 1F1B keeps {} micro-batches instead of {}",
                  bubble_text(one_by_one), bubble_text(gpipe), in_flight_text(one_by_one),
                  in_flight_text(gpipe)));
}

/// The last two layers are still there when backward begins, and nothing in it reads the first. So
/// of n layers, n are gathered forward and n - 3 backward, and n reduced: (3 n - 3) / 2 n.
void add_traffic_that_differs(std::vector<PublishedNumber>& all) {
  constexpr int kRanks = 8;
  all.push_back(row_of("ZeRO, bytes that a rank sends with stage 3, over those without",
                       PublishedKind::kDoesNotReproduce,
                       fmt::format("{:.2f}x with 6 layers, of which the last 2 and the first are "
                                   "gathered once (counted); 1.5x only in the limit of many",
                                   sent_over_gradients(SchemeKind::kZero3, kRanks) /
                                       sent_over_gradients(SchemeKind::kDdp, kRanks))));
}

}  // namespace

std::vector<PublishedNumber> published_numbers() {
  std::vector<PublishedNumber> all;
  const auto document = nlohmann::json::parse(read_file(BARESTEP_PUBLISHED));
  for (const auto& [address, figures] : document.items()) {
    for (const auto& [what, figure] : figures.items()) {
      const bool has_quote = figure.is_array();
      all.push_back({.what = what,
                     .published = has_quote ? figure[0] : figure,
                     .address = address,
                     .quote = has_quote ? figure[1] : ""});
    }
  }
  return all;
}

std::vector<PublishedNumber> exact_numbers() {
  std::vector<PublishedNumber> all;
  add_splits(all);
  add_buckets(all);
  add_epoch(all);
  add_zero_bytes(all);
  add_zero_stages(all);
  add_deepspeed_estimates(all);
  add_traffic(all);
  add_communication_bounds(all);
  add_servers(all);
  add_pipelines(all);
  add_zero_bubble(all);
  add_tensor_pair(all);
  add_attention_memory(all);
  add_gpt2(all);
  add_layer_activations(all);
  add_layer_flops(all);
  return all;
}

PublishedNumber zero_recipe_sum() {
  constexpr double kTolerance = 0.1;
  TrainConfig config;
  config.parallel.scheme = SchemeKind::kSingle;
  config.model.dim = kRecipeWidth;
  config.model.depth = kRecipeLayers;
  config.model.activation = Activation::kNone;
  config.data.batch_size = 20;
  config.training.steps = 1;
  config.optimizer.lr = 0.01;
  config.device.device = "cpu";
  const WorkloadPrograms programs({.config = config});
  const auto device = make_device(config.device);
  Trainer trainer(config, programs.steps(), {device.get()}, {}, nullptr);
  TrainObserver silent;
  trainer.run(silent);
  FlatWeights weights = trainer.weights();
  // The recipe adds all parameters into one tensor; by broadcasting, each bias counts once per row.
  const Parameters& parameters = programs.steps().parameter_list();
  double sum = 0;
  for (ParameterId id = 0; id < parameters.count(); ++id) {
    const double times = parameters[id].shape.size() == 1 ? kRecipeWidth : 1;
    for (const float each : parameters.in(weights, id)) sum += times * double{each};
  }
  PublishedNumber row = row_of("ZeRO recipe, sum of the parameters after one step, to 0.1",
                               PublishedKind::kReproduced, fmt::format("{:.1f}", sum));
  row.agrees = std::abs(sum - std::stod(row.published)) < kTolerance;
  return row;
}

std::vector<PublishedNumber> cited_numbers() {
  std::vector<PublishedNumber> all;
  add_v100_run(all, 256);
  add_v100_run(all, 4096);
  add_amp_run(all);
  // Adam reads four numbers and writes three per parameter.
  constexpr double kParameters = 10 * 1024.0 * 1024;
  const double adam_s = 28 * kParameters / load_card("a100-nvlink").memory_bytes_per_s;
  for (const char* const how : {"eager", "compiled"}) {
    all.push_back(cited(fmt::format("step of Adam on 10 x Linear(1024, 1024), {}", how),
                        time_text(adam_s), "one pass on an A100"));
  }
  return all;
}

std::vector<PublishedNumber> differing_numbers() {
  std::vector<PublishedNumber> all;
  add_attention_flops(all);
  add_schedules_that_differ(all);
  add_traffic_that_differs(all);
  return all;
}

}  // namespace barestep
