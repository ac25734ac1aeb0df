// What a run is asked to do: every option of the trainers as a plain struct, with its default.
//
// Each field is named after its option (`batch_size` is --batch-size). options/ has the table by
// which it is read, written and checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/activation.h"
#include "core/index.h"
#include "core/loss.h"
#include "core/tensor.h"

namespace barestep {

/// Some steps of a run that follow each other: `first` and what follows, without `end`, as a slice
/// in Python.
struct StepRange {
  std::int64_t first = 0;
  std::int64_t end = 0;

  [[nodiscard]] constexpr bool contains(std::int64_t step) const {
    return first <= step && step < end;
  }
  [[nodiscard]] constexpr std::int64_t size() const { return end - first; }

  friend bool operator==(const StepRange&, const StepRange&) = default;
};

/// Whole numbers an option accepts, first and last included.
struct Range {
  std::int64_t first;
  std::int64_t last;

  [[nodiscard]] constexpr bool contains(std::int64_t value) const {
    return first <= value && value <= last;
  }
};

/// Real numbers an option accepts: above (or from, if `with_low`) `low`, and below `end`. Neither
/// NaN nor infinity is in any. A number of `as_float32` is used as a float32, so what would round
/// to 0 or to infinity there is not in the range; 0 itself may be.
struct RealRange {
  double low;
  bool with_low;
  double end;
  bool as_float32 = false;

  [[nodiscard]] constexpr bool contains(double value) const {
    return (with_low ? value >= low : value > low) && value < end &&
           (!as_float32 || (!underflows(value) && !overflows(value)));
  }

  // What lies half-way between two float32 rounds to the even one.
  static constexpr bool underflows(double value) {
    return value != 0 && -0x1p-150 <= value && value <= 0x1p-150;
  }
  static constexpr bool overflows(double value) {
    return value <= -0x1.ffffffp127 || value >= 0x1.ffffffp127;
  }
};

namespace limits {

// They keep every product of sizes that validate() lets through inside 64 bits.
constexpr Range kWidths{1, std::int64_t{1} << 24};
constexpr Range kDepths{1, 10'000};
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
constexpr RealRange kShares{0, true, 1};  // --betas, --test-split, --dropout, ...
constexpr Range kRanks{0, 1'000'000};
constexpr RealRange kDelays{0, true, 1e6};
constexpr RealRange kBucketMibs{0, false, 1e6};
constexpr RealRange kTimeouts{0, false, 1e9};
constexpr Range kProfiledSteps{0, 1'000'000'000};
constexpr Range kRows{1, 1'000'000};  // --row-limit
constexpr Range kDevices{1, 64};
constexpr Range kCheckpoints{1, 1'000'000};  // --checkpoint-keep

}  // namespace limits

/// "a whole number from 1 to 1024", "a number above 0", "a number from 0 to below 1": what messages
/// and --help say.
std::string text_of(const Range& range);
std::string text_of(const RealRange& range);

/// Why `value` is not in `range`, and what to give instead.
struct OutOfRange {
  std::string why, remedy;
};
OutOfRange out_of_range(const RealRange& range, double value);

constexpr std::int64_t kDefaultDimCpu = 1024;
constexpr std::int64_t kDefaultDimCuda = 8192;
constexpr std::int64_t kDefaultDepth = 6;
constexpr std::int64_t kDefaultSteps = 20;
constexpr std::int64_t kDefaultWarmup = 5;
constexpr std::int64_t kDefaultRowLimit = 100;
constexpr std::int64_t kDefaultLrStep = 30;
constexpr double kDefaultLrGamma = 0.1;

/// --recompute auto: as many segments as --memory asks for.
constexpr std::int64_t kAutoRecompute = 0;

/// The programs that train.
enum class TrainerKind { kSingle, kDataParallel, kDdp };
template <>
inline constexpr std::string_view kNamesOf<TrainerKind>[] = {"mlp_single", "mlp_dp", "mlp_ddp"};

enum class DataKind { kRandn, kIdx, kNpy, kSafetensors };
template <>
inline constexpr std::string_view kNamesOf<DataKind>[] = {"randn", "idx", "npy", "safetensors"};

enum class OptimizerKind { kAdam, kAdamW, kSgd, kRmsProp, kAdagrad, kLion };
template <>
inline constexpr std::string_view kNamesOf<OptimizerKind>[] = {"adam",    "adamw",   "sgd",
                                                               "rmsprop", "adagrad", "lion"};

/// Numbers of an optimizer that options set.
struct OptimizerNumbers {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};

/// What sets an optimizer apart from the others, but for its arithmetic.
struct OptimizerTraits {
  OptimizerNumbers defaults{};    // PyTorch's; Lion's, which it has not, are the paper's
  bool has_eps = true;            // takes --eps
  bool has_momentum = false;      // takes --momentum
  bool has_nesterov = false;      // takes --nesterov
  bool has_amsgrad = false;       // takes --amsgrad
  bool has_fused_update = false;  // takes --update fused
};
constexpr OptimizerTraits traits_of(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdam:
      return {.has_amsgrad = true, .has_fused_update = true};
    case OptimizerKind::kAdamW:
      return {.defaults = {.weight_decay = 0.01}, .has_amsgrad = true, .has_fused_update = true};
    case OptimizerKind::kSgd:
      return {.has_eps = false, .has_momentum = true, .has_nesterov = true};
    case OptimizerKind::kRmsProp:
      return {.defaults = {.lr = 1e-2}, .has_momentum = true};
    case OptimizerKind::kAdagrad:
      return {.defaults = {.lr = 1e-2, .eps = 1e-10}};
    case OptimizerKind::kLion:
      return {.defaults = {.beta2 = 0.99}, .has_eps = false};
  }
  return {};
}

/// What becomes of the learning rate after --lr-warmup.
enum class LrSchedule { kConstant, kLinear, kCosine, kStep };
template <>
inline constexpr std::string_view kNamesOf<LrSchedule>[] = {"constant", "linear", "cosine", "step"};

enum class LrScale { kNone, kLinear };
template <>
inline constexpr std::string_view kNamesOf<LrScale>[] = {"none", "linear"};

/// Where the optimizer's step runs: after all gradients, inside the products that make them, which
/// then are not stored, or after the all-reduce of each bucket. kAuto is a question that
/// choose_update() answers; if it was not asked, it is kSeparate.
enum class Update { kAuto, kSeparate, kFused, kPerBucket };
template <>
inline constexpr std::string_view kNamesOf<Update>[] = {"auto", "separate", "fused", "per-bucket"};

enum class GemmProvider { kAuto, kOneDnn, kCblas, kReference };
template <>
inline constexpr std::string_view kNamesOf<GemmProvider>[] = {"auto", "onednn", "cblas",
                                                              "reference"};

/// Of matrix products. With 16 bits also of what they read and write, with the rounding points of
/// torch.autocast; weights and all that the optimizer keeps stay fp32. int8 is for
/// evaluations.
enum class Precision { kFp32, kTf32, kBf16, kFp16, kInt8 };
template <>
inline constexpr std::string_view kNamesOf<Precision>[] = {"fp32", "tf32", "bf16", "fp16", "int8"};

/// The type of the numbers that products read and write.
constexpr DType type_of(Precision precision) {
  return precision == Precision::kBf16   ? DType::kBF16
         : precision == Precision::kFp16 ? DType::kF16
                                         : DType::kF32;
}

/// How many times as large gradients of fp16 are computed; the defaults are those of
/// torch.amp.GradScaler.
struct LossScaling {
  bool dynamic = true;  // halved after an overflow, doubled after `window` steps without one
  double initial = 65536;
  std::int64_t window = 2000;

  friend bool operator==(const LossScaling&, const LossScaling&) = default;
};

/// How --precision int8 quantises: weights by outputs and activations by rows, symmetric; or as
/// torch.ao.quantization.quantize_dynamic does, activations of the whole batch by one scale and
/// weights too, or by outputs.
enum class Quantization { kRow, kTorch, kTorchPerChannel };
template <>
inline constexpr std::string_view kNamesOf<Quantization>[] = {"row", "torch", "torch-per-channel"};

enum class Transport { kAuto, kNccl, kMpi, kPeer };
template <>
inline constexpr std::string_view kNamesOf<Transport>[] = {"auto", "nccl", "mpi", "peer"};

enum class RankScheme { kDdp, kZero1, kFactor };
template <>
inline constexpr std::string_view kNamesOf<RankScheme>[] = {"ddp", "zero1", "factor"};

/// What rows of the operator table are sorted by; the names are PyTorch's.
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

struct ModelConfig {
  std::optional<std::int64_t> dim{};    // default: 8192 on a GPU, 1024 on the CPU
  std::optional<std::int64_t> depth{};  // default: 6
  std::vector<std::int64_t> layers{};   // widths W0,W1,...; instead of dim and depth
  Activation activation = Activation::kRelu;
  bool last_relu = true;  // --no-last-relu; a ReLU after the last Linear too
  LossKind loss = LossKind::kMse;
  double label_smoothing = 0;
  double dropout = 0;  // its rate

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

struct DataConfig {
  DataKind kind = DataKind::kRandn;
  std::filesystem::path x{}, y{};     // of idx:X,Y and npy:X,Y; of safetensors:X, y is empty
  std::int64_t batch_size = 64;       // of a micro-step
  std::vector<std::int64_t> sweep{};  // batch sizes to run one after the other, or none
  bool shuffle = true;                // --no-shuffle: every epoch in the order of the files
  bool standardize = false;           // features get mean 0 and variance 1, by the training set's
  bool drop_last = false;             // leave out the smaller last batch of an epoch
  double test_split = 0;              // the last share of the samples is the test set
  int workers = 1;                    // threads that gather batches ahead; 0: inside the step
  int prefetch = 2;                   // batches each of them may be ahead
  bool pin = true;                    // --no-pin: batches are copied from pageable memory
  double io_delay_ms = 0;             // injected: what a slow disk would cost each step

  friend bool operator==(const DataConfig&, const DataConfig&) = default;
};

/// The optimizer and its numbers: what options set, and what steps are built from and run with.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdam;
  std::optional<double> lr{}, beta1{}, beta2{}, eps{}, weight_decay{};  // see numbers_of()
  double momentum = 0;
  bool nesterov = false;
  bool amsgrad = false;
  std::int64_t lr_warmup = 0;         // steps over which the learning rate grows to its value
  LrScale lr_scale = LrScale::kNone;  // linear: lr times the number of ranks
  LrSchedule lr_schedule = LrSchedule::kConstant;
  std::optional<double> lr_min{};         // default: 0; of linear and cosine
  std::optional<std::int64_t> lr_step{};  // default: 30; of step
  std::optional<double> lr_gamma{};       // default: 0.1; of step

  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

struct TrainingConfig {
  std::optional<std::int64_t> steps{};      // default: 20
  std::optional<std::int64_t> epochs{};     // instead of steps; needs files
  std::optional<std::int64_t> warmup{};     // the first of the steps; read it through warmup_of()
  std::uint64_t seed = 0;                   // -1 is 2^64 - 1
  std::int64_t accumulate = 1;              // micro-steps of batch_size samples in a step
  std::int64_t recompute = 1;               // segments; 1: none is recomputed; or kAutoRecompute
  bool zero_grad = true;                    // --no-zero-grad: gradients add up from step to step
  std::optional<double> clip_norm{};        // the most the norm of all gradients may be
  std::optional<LossScaling> loss_scale{};  // default: dynamic with fp16, else none
  std::optional<std::int64_t> loss_scale_window{};  // default: 2000; of a dynamic one
  Update update = Update::kAuto;
  std::int64_t log_every = 1;
  std::optional<std::int64_t> early_stop{};  // evaluations without a better test loss
  bool evaluate_only = false;                // instead of training

  friend bool operator==(const TrainingConfig&, const TrainingConfig&) = default;
};

struct DeviceConfig {
  std::string device = "auto";         // auto, cpu, cuda, cuda:1
  std::vector<std::string> devices{};  // cpu or cuda:N each, to spread a step over; mlp_dp's
  std::optional<int> threads{};  // of the CPU device; default: one for each CPU of this process
  GemmProvider gemm = GemmProvider::kAuto;
  bool fusion = true;  // bias and ReLU inside the forward product
  bool graph = false;  // capture the step once, launch it as one piece
  Precision precision = Precision::kFp32;
  std::optional<Quantization> quantization{};  // of int8; default: kRow
  // A GPU times the algorithms of products: of those from tuned_flop on, keeping its choices in a
  // cache of the user's, or of all, keeping them in the file `autotune`.
  bool autotunes = true;
  std::filesystem::path autotune{};
  double tuned_flop = 1e9;  // not an option
  // Not an option: if above 0, a GPU computes a layer's product of any number of rows by the
  // algorithm for so many, so that a row's bits do not depend on how many there are.
  std::int64_t rows_of_products = 0;

  friend bool operator==(const DeviceConfig&, const DeviceConfig&) = default;
};

struct SlowRank {
  std::int64_t rank = 0;
  double delay_ms = 0;

  friend bool operator==(const SlowRank&, const SlowRank&) = default;
};

/// Pauses before backward.
struct InjectedConfig {
  double delay_ms = 0;
  std::optional<SlowRank> slow_rank{};
  double jitter_ms = 0;  // random, from 0 to this

  friend bool operator==(const InjectedConfig&, const InjectedConfig&) = default;
};

/// What only ranks have: mlp_ddp's; mlp_dp has the transport and the limit of time.
struct ParallelConfig {
  bool batch_per_rank = false;  // data.batch_size is each rank's (--batch-size)
  bool global_batch = false;    // it was given as that of all ranks (--global-batch-size)
  bool seed_per_rank = false;   // random data: each rank draws its own, seeded with seed + rank
  Transport transport = Transport::kAuto;
  RankScheme scheme = RankScheme::kDdp;
  double bucket_mib = 25;           // at which a bucket of gradients is closed, but the first
  bool whole_first_bucket = false;  // the first step reduces all gradients as one, as PyTorch's
  bool overlap = true;              // communication while backward goes on
  bool bf16_gradients = false;      // gradients are rounded to bf16 for the all-reduce
  double timeout_s = 300;           // who is in something for longer ends the run

  friend bool operator==(const ParallelConfig&, const ParallelConfig&) = default;
};

/// How often a checkpoint is made: after so many steps, or as soon as so much time has passed.
struct CheckpointEvery {
  std::int64_t steps = 0;  // 0: by time
  double seconds = 600;

  friend bool operator==(const CheckpointEvery&, const CheckpointEvery&) = default;
};

/// How a run that is cut off goes on.
struct CheckpointConfig {
  std::filesystem::path folder{};  // --checkpoint; the rest is --checkpoint-every and so on
  CheckpointEvery every{};
  std::int64_t keep = 2;  // of the newest
  bool best = false;      // and the one with the smallest test loss
  bool resume = false;    // from the newest in `folder`, or a fresh start where there is none
  std::filesystem::path resume_from{};
  std::optional<double> time_limit_s{};

  [[nodiscard]] bool resumes() const { return resume || !resume_from.empty(); }

  friend bool operator==(const CheckpointConfig&, const CheckpointConfig&) = default;
};

struct OutputConfig {
  std::filesystem::path metrics{};  // JSON Lines, one record a step
  std::filesystem::path save{};     // weights, safetensors
  std::filesystem::path load{};
  bool show_split = false;                   // print the rows of each device in each step
  bool monitor = false;                      // look at the machine while the run goes on
  bool plan = false;                         // print the memory plan and exit
  bool explain = false;                      // print the step's program and exit
  std::optional<std::int64_t> memory{};      // bytes the device is taken to have
  bool profile = false;                      // print the operator table
  std::filesystem::path trace{};             // JSON, or .json.gz, for Perfetto and its like
  std::filesystem::path tensorboard{};       // folder of event files
  std::optional<StepRange> profile_steps{};  // read it through profiled_steps_of()
  std::optional<SortBy> sort_by{};           // default: kDeviceTotal
  std::optional<std::int64_t> row_limit{};   // default: kDefaultRowLimit

  /// Whether anything needs records.
  [[nodiscard]] bool records() const { return profile || !trace.empty(); }

  /// Whether a run leaves a file.
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
  std::filesystem::path file{};  // --config, of which some of this may come

  friend bool operator==(const TrainConfig&, const TrainConfig&) = default;
};

/// auto, cpu, cuda, or cuda:N. Whether there is such a device is found by whoever opens it.
bool is_device_name(std::string_view name);

/// Throws Error(kConfiguration) for an option that only a GPU has; what the CPU device is asked
/// for.
void require_fit_for_cpu(const DeviceConfig& device);

/// The widths of the layers, at least two: `layers`, or depth + 1 times dim. `default_dim` stands
/// in for an unset dim.
std::vector<std::int64_t> widths_of(const ModelConfig& model, std::int64_t default_dim);

/// As asked for, else the optimizer's defaults.
OptimizerNumbers numbers_of(const OptimizerConfig& optimizer);

/// The loss scaling of a run: none but with fp16.
std::optional<LossScaling> loss_scaling_of(const TrainConfig& config);

/// The same optimizer with every default written out.
OptimizerConfig with_defaults(const OptimizerConfig& optimizer);

/// How many of the `steps` of a run are warm-up and left out of the summary: as asked for, else 5
/// or what leaves one step. Throws Error(kConfiguration) if the warm-up asked for leaves none.
std::int64_t warmup_of(const TrainingConfig& training, std::int64_t steps);

/// The first step after warm-up of a run that has `done` of its `steps` already: what is new is
/// warmed up again, and a step is left to measure where any is left.
std::int64_t first_measured_step(const TrainingConfig& training, std::int64_t steps,
                                 std::int64_t done = 0);

/// Which of the `steps` of a run are profiled: as asked for, else the last half of those after
/// warm-up, at most 50. Throws Error(kConfiguration) if the run does not have all of them.
/// Of a run that has `done` of them already, those that are left; none where all were done.
StepRange profiled_steps_of(const TrainConfig& config, std::int64_t steps, std::int64_t done = 0);

}  // namespace barestep
