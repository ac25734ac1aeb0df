// The options of a run: every option of the trainers as a plain struct, with its default.
//
// Each field is named after its option (`batch_size` is --batch-size). The table in options/ reads,
// writes and checks them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/activation.h"
#include "core/attention.h"
#include "core/index.h"
#include "core/loss.h"
#include "core/program.h"
#include "core/tensor.h"

namespace barestep {

/// Consecutive steps of a run, from `first` up to but not including `end`, like a slice in Python.
struct StepRange {
  std::int64_t first = 0;
  std::int64_t end = 0;

  [[nodiscard]] constexpr bool contains(std::int64_t step) const {
    return first <= step && step < end;
  }
  [[nodiscard]] constexpr std::int64_t size() const { return end - first; }

  friend bool operator==(const StepRange&, const StepRange&) = default;
};

/// The whole numbers that an option accepts, both ends included.
struct Range {
  std::int64_t first;
  std::int64_t last;

  [[nodiscard]] constexpr bool contains(std::int64_t value) const {
    return first <= value && value <= last;
  }
};

/// The real numbers that an option accepts: above `low` (or from it, if `with_low`) and below
/// `end`. NaN and infinity are never accepted. If `as_float32`, the number is used as a float32:
/// then a nonzero number that rounds to 0 there is out of range, and so is one that rounds to `end`
/// or infinity.
struct RealRange {
  double low;
  bool with_low;
  double end;
  bool as_float32 = false;

  [[nodiscard]] constexpr bool contains(double value) const {
    return (with_low ? value >= low : value > low) && value < end &&
           (!as_float32 || (!underflows(value) && !overflows(value) && !reaches_end(value)));
  }

  /// Whether `value`, which does not overflow, is `end` as a float32.
  [[nodiscard]] constexpr bool reaches_end(double value) const {
    return static_cast<double>(static_cast<float>(value)) >= end;
  }

  // Half-way cases round to even.
  static constexpr bool underflows(double value) {
    return value != 0 && -0x1p-150 <= value && value <= 0x1p-150;
  }
  static constexpr bool overflows(double value) {
    return value <= -0x1.ffffffp127 || value >= 0x1.ffffffp127;
  }
};

namespace limits {

// These limits keep every product of validated sizes within 64 bits.
constexpr Range kWidths{1, std::int64_t{1} << 24};
constexpr Range kDepths{1, 10'000};
constexpr Range kHeads{1, 4096};
constexpr Range kLengths{1, 65'536};
constexpr Range kBatchSizes{1, std::numeric_limits<std::int32_t>::max()};
constexpr Range kCounts{1, 1'000'000'000};   // --steps, --epochs, --log-every
constexpr Range kWarmups{0, 1'000'000'000};  // --warmup, --lr-warmup
constexpr Range kMicroSteps{1, 10'000};
constexpr Range kThreads{1, 1024};
constexpr Range kWorkers{0, 256};
constexpr Range kPrefetches{1, 1024};
constexpr Range kMemorySizes{1, std::int64_t{1} << 60};
constexpr RealRange kPositive{0, false, std::numeric_limits<double>::infinity(), true};
constexpr RealRange kNotNegative{0, true, std::numeric_limits<double>::infinity(), true};
constexpr RealRange kShares{0, true, 1, true};  // --betas, --momentum, --dropout, ...
constexpr RealRange kTestSplits{0, true, 1};
constexpr Range kRanks{0, 1'000'000};
constexpr RealRange kDelays{0, true, 1e6};
constexpr Range kMeshSizes{1, 1024};
constexpr RealRange kBucketMibs{0, false, 1e6};
constexpr RealRange kTimeouts{0, false, 1e9};
constexpr Range kFlippedWords{0, std::int64_t{1} << 60};
constexpr Range kProfiledSteps{0, 1'000'000'000};
constexpr Range kRows{1, 1'000'000};  // --row-limit
constexpr Range kDevices{1, 64};
constexpr Range kCheckpoints{1, 1'000'000};  // --checkpoint-keep
constexpr Range kDelayedSteps{0, 100};       // --staleness

}  // namespace limits

/// "a whole number from 1 to 1024", "a number above 0", "a number of at least 0 and below 1", for
/// messages and --help.
std::string text_of(const Range& range);
std::string text_of(const RealRange& range);

/// Why `value` is not in `range`, and which value to use instead.
struct OutOfRange {
  std::string why, remedy;
};
OutOfRange out_of_range(const RealRange& range, double value);

constexpr std::int64_t kDefaultDimCpu = 1024;
constexpr std::int64_t kDefaultDimCuda = 8192;
constexpr std::int64_t kDefaultDepth = 6;
constexpr std::int64_t kDefaultHeadWidth = 64;
constexpr std::int64_t kDefaultLength = 128;
constexpr std::int64_t kDefaultSteps = 20;
constexpr std::int64_t kDefaultWarmup = 5;
constexpr std::int64_t kDefaultRowLimit = 100;
constexpr std::int64_t kDefaultLrStep = 30;
constexpr double kDefaultLrGamma = 0.1;

/// --recompute auto: as many segments as --memory requires.
constexpr std::int64_t kAutoRecompute = 0;

enum class DataKind { kRandn, kIdx, kNpy, kSafetensors };
template <>
inline constexpr std::string_view kNamesOf<DataKind>[] = {"randn", "idx", "npy", "safetensors"};

enum class OptimizerKind { kAdam, kAdamW, kSgd, kRmsProp, kAdagrad, kLion };
template <>
inline constexpr std::string_view kNamesOf<OptimizerKind>[] = {"adam",    "adamw",   "sgd",
                                                               "rmsprop", "adagrad", "lion"};

/// The optimizer's numbers that have options.
struct OptimizerNumbers {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};

/// All properties of an optimizer except its arithmetic.
struct OptimizerTraits {
  OptimizerNumbers defaults{};    // PyTorch's; it lacks Lion: the paper's
  bool has_betas = false;         // takes --betas
  bool has_eps = true;            // takes --eps
  bool has_momentum = false;      // takes --momentum
  bool has_nesterov = false;      // takes --nesterov
  bool has_amsgrad = false;       // takes --amsgrad
  bool has_fused_update = false;  // takes --update fused
};
inline constexpr EnumArray<OptimizerKind, OptimizerTraits> kOptimizerTraits = {
    {{{.has_betas = true, .has_amsgrad = true, .has_fused_update = true},
      {.defaults = {.weight_decay = 0.01},
       .has_betas = true,
       .has_amsgrad = true,
       .has_fused_update = true},
      {.has_eps = false, .has_momentum = true, .has_nesterov = true},
      {.defaults = {.lr = 1e-2}, .has_momentum = true},
      {.defaults = {.lr = 1e-2, .eps = 1e-10}},
      {.defaults = {.beta2 = 0.99}, .has_betas = true, .has_eps = false}}}};
constexpr const OptimizerTraits& traits_of(OptimizerKind kind) {
  return kOptimizerTraits[kind];
}

/// How the learning rate develops after --lr-warmup.
enum class LrSchedule { kConstant, kLinear, kCosine, kStep };
template <>
inline constexpr std::string_view kNamesOf<LrSchedule>[] = {"constant", "linear", "cosine", "step"};

enum class LrScale { kNone, kLinear };
template <>
inline constexpr std::string_view kNamesOf<LrScale>[] = {"none", "linear"};

/// Where the optimizer's step runs: after all gradients; fused into the products that compute the
/// gradients, which are then never stored; or after each bucket's all-reduce. choose_update()
/// resolves kAuto; unresolved, it means kSeparate.
enum class Update { kAuto, kSeparate, kFused, kPerBucket };
template <>
inline constexpr std::string_view kNamesOf<Update>[] = {"auto", "separate", "fused", "per-bucket"};

enum class GemmProvider { kAuto, kOwn, kOneDnn, kCblas, kReference };
template <>
inline constexpr std::string_view kNamesOf<GemmProvider>[] = {"auto", "own", "onednn", "cblas",
                                                              "reference"};

/// The most that the CPU device's own kernels may use; each includes those before it.
enum class Instructions { kAuto, kPlain, kAvx2, kAvx512 };
template <>
inline constexpr std::string_view kNamesOf<Instructions>[] = {"auto", "plain", "avx2", "avx512"};

/// The precision of matrix products. With 16 bits, also of the numbers they read and write, with
/// the rounding points of torch.autocast; weights and the optimizer's state stay fp32. int8 is for
/// evaluations only.
enum class Precision { kFp32, kTf32, kBf16, kFp16, kInt8 };
template <>
inline constexpr std::string_view kNamesOf<Precision>[] = {"fp32", "tf32", "bf16", "fp16", "int8"};

/// How the CPU computes with denormal numbers, whose size in fp32 is below 2^-126: it takes them as
/// 0, or slowly as IEEE 754 demands. See kernels/cpu/denormals.h.
enum class Denormals { kFlush, kKeep };
template <>
inline constexpr std::string_view kNamesOf<Denormals>[] = {"flush", "keep"};

/// The type of the numbers that products read and write.
constexpr DType type_of(Precision precision) {
  return precision == Precision::kBf16   ? DType::kBF16
         : precision == Precision::kFp16 ? DType::kF16
                                         : DType::kF32;
}

/// Whether products take whole numbers, to which evaluations quantize; nothing is trained in these.
constexpr bool quantizes(Precision precision) {
  return precision == Precision::kInt8;
}

/// The factor that scales fp16 gradients; the defaults are those of torch.amp.GradScaler.
struct LossScaling {
  bool dynamic = true;  // halves after an overflow, doubles after `window` steps without one
  double initial = 65536;
  std::int64_t window = 2000;

  friend bool operator==(const LossScaling&, const LossScaling&) = default;
};

/// How --precision int8 quantizes. kRow: one scale for each output of the weights and each row of
/// activations, symmetric. kTorch and kTorchPerChannel follow
/// torch.ao.quantization.quantize_dynamic: one scale for the whole batch's activations, and for the
/// weights either one scale or one for each output.
enum class Quantization { kRow, kTorch, kTorchPerChannel };
template <>
inline constexpr std::string_view kNamesOf<Quantization>[] = {"row", "torch", "torch-per-channel"};

enum class TransportKind { kAuto, kNccl, kMpi, kPeer };
template <>
inline constexpr std::string_view kNamesOf<TransportKind>[] = {"auto", "nccl", "mpi", "peer"};

/// How devices share a step.
enum class SchemeKind { kSingle, kDdp, kZero1, kZero2, kZero3, kFactor, kServer, kDataParallel };
template <>
inline constexpr std::string_view kNamesOf<SchemeKind>[] = {
    "single", "ddp", "zero1", "zero2", "zero3", "factor", "server", "data-parallel"};

/// A program that trains, and its schemes.
struct TrainingProgram {
  std::string_view name;
  SchemeKind usual;  // its default and its first
  SchemeKind last;

  [[nodiscard]] constexpr bool has(SchemeKind scheme) const {
    return usual <= scheme && scheme <= last;
  }
};
inline constexpr TrainingProgram kTrainingPrograms[] = {
    {"mlp_single", SchemeKind::kSingle, SchemeKind::kSingle},
    {"mlp_dp", SchemeKind::kDataParallel, SchemeKind::kDataParallel},
    {"mlp_ddp", SchemeKind::kDdp, SchemeKind::kServer}};

/// The one that has this scheme.
constexpr const TrainingProgram& program_of(SchemeKind scheme) {
  const TrainingProgram* program = kTrainingPrograms;
  while (!program->has(scheme)) ++program;
  return *program;
}

/// Whether each device belongs to a process of its own.
constexpr bool has_ranks(SchemeKind scheme) {
  return scheme != SchemeKind::kSingle && scheme != SchemeKind::kDataParallel;
}

/// How a parameter server adds up what the other ranks push: it receives from each of them, or the
/// transport reduces along its own rings or trees.
enum class ServerReduce { kStar, kTree };
template <>
inline constexpr std::string_view kNamesOf<ServerReduce>[] = {"star", "tree"};

/// What ranks do with the average of their weights; see LocalSgd.
enum class OuterOptimizer { kNone, kDiLoCo };
template <>
inline constexpr std::string_view kNamesOf<OuterOptimizer>[] = {"none", "diloco"};

/// The order in which a pipeline's stages run their passes; see train/pass_schedule.h.
enum class PipelineSchedule { kOneForwardOneBackward, kGPipe, kNaive, kZeroBubbleH1 };
template <>
inline constexpr std::string_view kNamesOf<PipelineSchedule>[] = {"1f1b", "gpipe", "naive",
                                                                  "zb-h1"};

/// The sort keys of the operator table; the names are PyTorch's.
enum class SortBy {
  kDeviceTotal,
  kSelfDeviceTotal,
  kDeviceTime,
  kCpuTotal,
  kSelfCpuTotal,
  kCpuTime,
  kCount
};
template <>
inline constexpr std::string_view kNamesOf<SortBy>[] = {"cuda_time_total",
                                                        "self_cuda_time_total",
                                                        "cuda_time",
                                                        "cpu_time_total",
                                                        "self_cpu_time_total",
                                                        "cpu_time",
                                                        "count"};

/// What a model is a chain of: Linear layers, or transformer blocks.
enum class BlockKind { kMlp, kTransformer };
template <>
inline constexpr std::string_view kNamesOf<BlockKind>[] = {"mlp", "transformer"};

struct ModelConfig {
  std::optional<std::int64_t> dim{};    // default: 8192 on a GPU, 1024 on the CPU
  std::optional<std::int64_t> depth{};  // default: 6
  std::vector<std::int64_t> layers{};   // widths W0,W1,...; instead of dim and depth
  Activation activation = Activation::kRelu;
  bool last_relu = true;  // --no-last-relu; an activation after the last Linear too
  LossKind loss = LossKind::kMse;
  double label_smoothing = 0;
  double dropout = 0;  // probability that a number becomes 0
  BlockKind block = BlockKind::kMlp;
  // Of transformer blocks.
  std::optional<std::int64_t> heads{};   // default: as many as are kDefaultHeadWidth wide, else 1
  std::optional<std::int64_t> length{};  // rows of a sample; default: 128
  std::optional<std::int64_t> ffn{};     // width of the hidden layer; default: 4 * dim
  bool causal = false;
  AttentionForm attention = AttentionForm::kFlash;

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

struct DataConfig {
  DataKind kind = DataKind::kRandn;
  bool teacher = false;                 // random samples with the targets of a fixed random model
  double teacher_noise = 0;             // standard deviation of what is added to these targets
  std::filesystem::path x{}, y{};       // idx:X,Y and npy:X,Y; for safetensors:X, y is empty
  std::int64_t batch_size = 64;         // per micro-step
  std::vector<std::int64_t> sweep{};    // batch sizes to run one after another; may be empty
  bool shuffle = true;                  // --no-shuffle: every epoch in the files' order
  std::optional<double> input_scale{};  // divides features; default: 255 for images of idx files
  bool standardize = false;  // gives features mean 0 and variance 1 over the training set
  bool drop_last = false;    // leave out the smaller last batch of an epoch
  double test_split = 0;     // share of samples, at the end, that form the test set
  int workers = 1;           // threads that gather batches ahead; 0: done inside the step
  int prefetch = 2;          // batches that each worker may be ahead
  bool pin = true;           // --no-pin: batches are copied from pageable memory
  double io_delay_ms = 0;    // injected: a slow disk's delay in each step

  friend bool operator==(const DataConfig&, const DataConfig&) = default;
};

/// The optimizer and its numbers, as set by options and used by the steps.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdam;
  std::optional<double> lr{}, beta1{}, beta2{}, eps{}, weight_decay{};  // see numbers_of()
  double momentum = 0;
  bool nesterov = false;
  bool amsgrad = false;
  std::int64_t lr_warmup = 0;         // steps over which the learning rate rises to its value
  LrScale lr_scale = LrScale::kNone;  // linear: lr times the number of ranks
  LrSchedule lr_schedule = LrSchedule::kConstant;
  std::optional<double> lr_min{};         // default: 0; for linear and cosine
  std::optional<std::int64_t> lr_step{};  // default: 30; for step
  std::optional<double> lr_gamma{};       // default: 0.1; for step

  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

struct TrainingConfig {
  std::optional<std::int64_t> steps{};       // default: 20
  std::optional<std::int64_t> epochs{};      // instead of steps; needs files
  std::optional<std::int64_t> warmup{};      // steps at the start; read it through warmup_of()
  std::uint64_t seed = 0;                    // the option's -1 is 2^64 - 1
  std::int64_t accumulate = 1;               // micro-steps of batch_size samples in a step
  std::optional<std::int64_t> chunk_rows{};  // --reproducible: samples whose gradients are one term
  std::int64_t recompute = 1;                // segments; 1: recomputes nothing; or kAutoRecompute
  bool zero_grad = true;                     // --no-zero-grad: gradients add up from step to step
  std::optional<double> clip_norm{};         // upper bound of the norm of all gradients
  std::optional<LossScaling> loss_scale{};   // default: dynamic with fp16, else none
  std::optional<std::int64_t> loss_scale_window{};  // default: 2000; for dynamic scaling
  Update update = Update::kAuto;
  std::int64_t log_every = 1;
  std::int64_t staleness = 0;                // steps by which gradients are applied late
  std::optional<std::int64_t> early_stop{};  // evaluations without a better test loss
  bool evaluate_only = false;                // no training

  friend bool operator==(const TrainingConfig&, const TrainingConfig&) = default;
};

/// Whether threads are bound to cores: not, to cores next to each other, or to cores far apart.
enum class Affinity { kNone, kCompact, kSpread };
template <>
inline constexpr std::string_view kNamesOf<Affinity>[] = {"none", "compact", "spread"};

struct DeviceConfig {
  std::string device = "auto";         // auto, cpu, cuda, cuda:1
  std::vector<std::string> devices{};  // mlp_dp: the devices that share a step; cpu or cuda:N
  std::optional<int> threads{};        // CPU device; default: one for each CPU this process may use
  Affinity affinity = Affinity::kNone;
  Denormals denormals = Denormals::kFlush;
  GemmProvider gemm = GemmProvider::kAuto;
  Instructions instructions = Instructions::kAuto;
  bool fusion = true;  // bias and activation in products, their gradients in one op
  bool graph = false;  // captures the step once and launches it as a unit
  Precision precision = Precision::kFp32;
  std::optional<Quantization> quantization{};  // if the precision quantizes; default: kRow
  // A GPU times the algorithms of products. With an empty `autotune`, it times products of at least
  // tuned_flop flops and keeps the choices in the user's cache; otherwise it times all products and
  // keeps the choices in that file.
  bool autotunes = true;
  std::filesystem::path autotune{};
  double tuned_flop = 2e7;  // not an option; timing a product takes about 10 ms
  // Not an option. If above 0, a GPU computes a layer's product with the algorithm for this many
  // rows, whatever the actual number, so a row's bits do not depend on the number of rows.
  std::int64_t rows_of_products = 0;

  friend bool operator==(const DeviceConfig&, const DeviceConfig&) = default;
};

struct SlowRank {
  std::int64_t rank = 0;
  double delay_ms = 0;

  friend bool operator==(const SlowRank&, const SlowRank&) = default;
};

/// A bit that a drill changes once: of a 32-bit word of a buffer, on one rank or device.
struct Flip {
  std::string buffer{};
  std::int64_t word = 0;
  std::int64_t bit = 0;
  std::optional<std::int64_t> node{};  // right after this one of the step's; else before the step
  std::int64_t step = 0;
  std::int64_t rank = 0;

  friend bool operator==(const Flip&, const Flip&) = default;
};

/// As --flip takes it.
std::string text_of(const Flip& flip);

/// Artificial pauses before backward, and an artificial fault.
struct InjectedConfig {
  double delay_ms = 0;
  std::optional<SlowRank> slow_rank{};
  double jitter_ms = 0;  // uniformly random between 0 and this
  std::optional<Flip> flip{};

  friend bool operator==(const InjectedConfig&, const InjectedConfig&) = default;
};

/// Options for several ranks or devices; each program has those that apply to it.
struct ParallelConfig {
  bool batch_per_rank = false;  // data.batch_size is per rank (--batch-size)
  bool global_batch = false;    // the batch size was given for all ranks (--global-batch-size)
  bool seed_per_rank = false;   // random data: each rank draws its own, seeded with seed + rank
  TransportKind transport = TransportKind::kAuto;
  SchemeKind scheme = SchemeKind::kDdp;
  std::int64_t tensor = 1;             // ranks that share every layer
  std::optional<double> bucket_mib{};  // closes a bucket of gradients; default: PyTorch's limits
  bool whole_first_bucket = false;  // the first step reduces all gradients at once, as PyTorch does
  bool overlap = true;              // communication runs during backward
  bool reduces_every_micro_step = false;  // not only after the last one
  bool bf16_gradients = false;            // gradients are rounded to bf16 for the all-reduce
  std::int64_t pipeline = 1;              // stages into which the model's layers are cut
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  std::optional<std::int64_t> micro_batches{};  // of a step; read it through micro_batches_of()
  std::int64_t servers = 1;                     // the first ranks of them, which have the optimizer
  ServerReduce server_reduce = ServerReduce::kStar;
  std::int64_t sync_every = 1;  // steps from one average of the ranks' weights to the next
  OuterOptimizer outer = OuterOptimizer::kNone;
  double timeout_s = 300;  // a rank that is in one operation for longer ends the run

  friend bool operator==(const ParallelConfig&, const ParallelConfig&) = default;
};

/// How often a checkpoint is saved: every `steps` steps, or as soon as enough time has passed.
struct CheckpointEvery {
  std::int64_t steps = 0;  // 0: by time
  double seconds = 600;

  friend bool operator==(const CheckpointEvery&, const CheckpointEvery&) = default;
};

/// How an interrupted run can be resumed.
struct CheckpointConfig {
  std::filesystem::path folder{};  // --checkpoint; others are --checkpoint-every etc.
  CheckpointEvery every{};
  std::int64_t keep = 2;  // number of newest ones to keep
  bool best = false;      // also keeps the one with the smallest test loss after an epoch
  bool resume = false;    // from the newest in `folder`; a fresh start if there is none
  std::filesystem::path resume_from{};
  std::optional<double> time_limit_s{};

  friend bool operator==(const CheckpointConfig&, const CheckpointConfig&) = default;
};

struct OutputConfig {
  std::filesystem::path metrics{};  // JSON Lines, one record a step
  std::filesystem::path save{};     // weights, safetensors
  std::filesystem::path load{};
  bool show_split = false;                     // prints the rows of each device in each step
  std::optional<std::int64_t> verify_every{};  // steps from one that is verified to the next
  bool monitor = false;                        // observes the machine during the run
  bool quiet = false;                          // prints no lines while it runs
  bool verbose = false;                        // prints more about how its times were measured
  bool plan = false;                           // prints the memory plan and exits
  bool explain = false;                        // prints the step's program and exits
  std::optional<std::int64_t> memory{};        // pretended size of the device's memory, in bytes
  bool profile = false;                        // prints the operator table
  std::filesystem::path trace{};             // JSON, or .json.gz, for Perfetto and similar viewers
  std::filesystem::path tensorboard{};       // folder of event files
  std::optional<StepRange> profile_steps{};  // read it through profiled_steps_of()
  std::vector<Phase> profile_phases{};       // in the tables of --profile; empty: all
  std::optional<SortBy> sort_by{};           // default: kDeviceTotal
  std::optional<std::int64_t> row_limit{};   // default: kDefaultRowLimit

  /// Whether any output tells the phases of a step apart. The table at a run's end does if they are
  /// measured.
  [[nodiscard]] bool shows_phases() const {
    return records() || !metrics.empty() || !tensorboard.empty();
  }

  /// Whether any output needs records.
  [[nodiscard]] bool records() const { return profile || !trace.empty(); }

  /// Whether a run writes any file.
  [[nodiscard]] bool writes() const {
    return !save.empty() || !metrics.empty() || !tensorboard.empty() || !trace.empty();
  }

  friend bool operator==(const OutputConfig&, const OutputConfig&) = default;
};

struct TrainConfig {
  ModelConfig model{};
  DataConfig data{};
  TrainingConfig training{};
  OptimizerConfig optimizer{};
  DeviceConfig device{};
  ParallelConfig parallel{};
  InjectedConfig injected{};
  CheckpointConfig checkpoint{};
  OutputConfig output{};
  std::filesystem::path file{};  // --config: the file that some of these values may come from

  friend bool operator==(const TrainConfig&, const TrainConfig&) = default;
};

inline std::string_view program_name(const TrainConfig& config) {
  return program_of(config.parallel.scheme).name;
}

/// auto, cpu, cuda, or cuda:N. Whether the device exists is checked when it is opened.
bool is_device_name(std::string_view name);

/// The N of cuda:N; 0 for the other names.
int ordinal_of(std::string_view device);

/// Throws Error(kConfiguration) if `device`, which is for the CPU, sets an option that only GPUs
/// have.
void require_fit_for_cpu(const DeviceConfig& device);

/// The widths of the layers, at least two: `layers`, or depth + 1 times dim. `default_dim` replaces
/// an unset dim.
std::vector<std::int64_t> widths_of(const ModelConfig& model, std::int64_t default_dim);

/// The number of heads of transformer blocks of this width: as given, else as many as are
/// kDefaultHeadWidth wide, else one.
std::int64_t heads_of(const ModelConfig& model, std::int64_t dim);

/// The attention of transformer blocks of this width, with defaults filled in. Throws
/// Error(kConfiguration) if the heads do not divide the width, or are too wide.
AttentionShape attention_of(const ModelConfig& model, std::int64_t dim);

/// The width of their hidden layer.
std::int64_t ffn_of(const ModelConfig& model, std::int64_t dim);

/// The numbers given as options; the optimizer's defaults for the rest.
OptimizerNumbers numbers_of(const OptimizerConfig& optimizer);

/// The micro-batches of a pipeline's step: as given, else as many as stages, or one if only one
/// stage works at a time. 1 without a pipeline.
std::int64_t micro_batches_of(const ParallelConfig& parallel);

/// The loss scaling of a run; none except with fp16.
std::optional<LossScaling> loss_scaling_of(const TrainConfig& config);

/// The same optimizer with the defaults of its own numbers filled in; those that it does not have
/// stay unset.
OptimizerConfig with_numbers(OptimizerConfig optimizer);

/// The same, with the defaults of every schedule too.
OptimizerConfig with_defaults(const OptimizerConfig& optimizer);

/// How many of a run's `steps` are warm-up and left out of the summary: as given, else 5, or fewer
/// so that one step is left. Throws Error(kConfiguration) if the given warm-up leaves no step.
std::int64_t warmup_of(const TrainingConfig& training, std::int64_t steps);

/// The first step after warm-up when `done` of the run's `steps` were done earlier. The resumed
/// part gets a warm-up of its own; if any steps remain, one is left to measure.
std::int64_t first_measured_step(const TrainingConfig& training, std::int64_t steps,
                                 std::int64_t done = 0);

/// Which of a run's `steps` are profiled: as given, else the last half of those after warm-up, at
/// most 50. Throws Error(kConfiguration) if the given range ends after the run does. If `done` of
/// the steps were done earlier, only the remaining ones; empty if none remains.
StepRange profiled_steps_of(const TrainConfig& config, std::int64_t steps, std::int64_t done = 0);

}  // namespace barestep
