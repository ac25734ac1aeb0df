// barestep_cuda_bench: single ops on a GPU, each next to the best that the same process measured.
// Memory ops are compared with a copy in device memory, products with the larger of two times:
// their bytes at the rate of that copy, and their flops at the rate of a large product. Whole steps
// are compared with the sum of the floors of their ops. Takes Google Benchmark's options.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "core/error.h"
#include "core/philox.h"
#include "kernels/make_device.h"
#include "measure.h"
#include "train/trainer.h"

namespace barestep::bench {
namespace {

constexpr std::int64_t kBatch = 64;

/// The precisions, in the order of a benchmark's argument.
constexpr Precision kPrecisions[] = {Precision::kFp32, Precision::kTf32, Precision::kBf16};

Precision precision_of(const benchmark::State& state, std::size_t argument) {
  return kPrecisions[state.range(argument)];
}

/// The first GPU, in one precision, with its own stream and memory.
class Gpu {
 public:
  /// `floats` of device memory filled with normal numbers. Throws Error(kMemory).
  Gpu(Precision precision, std::int64_t floats)
      : device_(make_cuda_device({.device = "cuda", .precision = precision}, 0)),
        stream_(device_->new_stream("compute")),
        begin_(device_->new_event(EventUse::kTime)),
        end_(device_->new_event(EventUse::kTime)),
        floats_(floats + kWorkspaceFloats + kStateFloats),
        memory_(device_->allocate(4 * floats_, MemoryKind::kDevice)),
        addresses_({memory_}) {
    const Tensor workspace = take(1, kWorkspaceFloats);
    stream_->set_workspace({addresses_.at<std::byte>(workspace), 4 * kWorkspaceFloats});
    state_ = take(1, kStateFloats);
    state_.cols = sizeof(PhiloxState);
    state_.dtype = DType::kU8;
    const PhiloxState state{.seed = 1, .offset = 0};
    device_->copy(addresses_.at<std::byte>(state_), &state, sizeof(state), *stream_);
    // With zeros, a GPU stays cooler and runs faster.
    if (floats > 0) run(randn({0, 4 * taken_, 1, floats}));
    stream_->synchronize();
  }
  ~Gpu() {
    stream_.reset();
    device_->release(memory_, MemoryKind::kDevice);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  /// The next numbers, aligned to 256 bytes.
  Tensor take(std::int64_t rows, std::int64_t cols) {
    const Tensor tensor{0, 4 * taken_, rows, cols};
    taken_ += padded(rows * cols);
    BARESTEP_REQUIRE(taken_ <= floats_, "a benchmark asked for too little memory");
    return tensor;
  }
  static constexpr std::int64_t padded(std::int64_t floats) { return (floats + 63) / 64 * 64; }

  /// The next numbers of a type, filled with normal numbers.
  Tensor take(std::int64_t rows, std::int64_t cols, DType type) {
    const Tensor floats = take(rows, cols);
    if (type == DType::kF32) return floats;
    const Tensor rounded{0, floats.offset_bytes, rows, cols, type};
    // Through other memory, since a cast does not work in place.
    const Tensor staging{0, 4 * (floats_ - padded(rows * cols)), rows, cols};
    run(Copy{.to = staging, .from = floats});
    run(Cast{.to = rounded, .from = staging});
    return rounded;
  }

  [[nodiscard]] Randn randn(const Tensor& out) const {
    return {.out = out, .state = state_, .generator = Generator::kTorchCuda};
  }

  void prepare(const DeviceOp& op) { device_->prepare(op); }
  void run(const DeviceOp& op) { device_->run(op, addresses_, *stream_, {}); }

  /// Seconds per call of body(), measured over `times` calls on the device's clock.
  double seconds_of(int times, const std::function<void()>& body) {
    begin_->record(*stream_);
    for (int i = 0; i < times; ++i) body();
    end_->record(*stream_);
    stream_->synchronize();
    return end_->seconds_since(*begin_) / times;
  }

  /// The shortest of several tries.
  double shortest(const std::function<void()>& body) {
    constexpr int kTries = 10;
    double best_s = HUGE_VAL;
    for (int i = 0; i < kTries; ++i) best_s = std::min(best_s, seconds_of(1, body));
    return best_s;
  }

  [[nodiscard]] DeviceInfo info() const { return device_->info(); }

 private:
  static constexpr std::int64_t kWorkspaceFloats = workspace_bytes(DeviceKind::kCuda) / 4;
  static constexpr std::int64_t kStateFloats = 64;

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> begin_, end_;
  std::int64_t floats_;
  std::byte* memory_;
  Addresses addresses_;
  std::int64_t taken_ = 0;
  Tensor state_;
};

/// True for the fake runtime's GPU.
bool is_small(const DeviceInfo& gpu) {
  return gpu.total_bytes < std::int64_t{4} << 30;
}

/// Bytes per second, read and written, of a copy of 2 GiB, or less on a small GPU.
double copy_bandwidth() {
  static const double bandwidth = [] {
    const DeviceInfo info = Gpu(Precision::kFp32, 0).info();
    const std::int64_t max = std::int64_t{1} << (is_small(info) ? 20 : 29);
    const std::int64_t floats = std::min(max, info.free_bytes / 32);
    Gpu gpu(Precision::kFp32, 2 * Gpu::padded(floats));
    const Copy op{.to = gpu.take(1, floats), .from = gpu.take(1, floats)};
    return 2 * 4.0 * static_cast<double>(floats) / gpu.shortest([&] { gpu.run(op); });
  }();
  return bandwidth;
}

/// Flops per second of a square product.
double product_rate(Precision precision) {
  static std::map<Precision, double> rates;
  double& rate = rates[precision];
  if (rate == 0) {
    const std::int64_t extent = is_small(Gpu(precision, 0).info()) ? 256 : 8192;
    Gpu gpu(precision, 3 * extent * extent);
    const Gemm op{.c = gpu.take(extent, extent),
                  .a = gpu.take(extent, extent),
                  .b = gpu.take(extent, extent)};
    gpu.prepare(op);
    rate = 2 * std::pow(static_cast<double>(extent), 3) / gpu.shortest([&] { gpu.run(op); });
  }
  return rate;
}

/// Number of calls queued between two events, large enough to make the cost of an event negligible.
int calls_for(double bytes) {
  constexpr double kLargeBytes = 1e9;
  return static_cast<int>(std::clamp(kLargeBytes / bytes, 1.0, 50.0));
}

/// Times the iterations of a benchmark; returns the median time of one call of body(). An error
/// skips the benchmark.
double time_on_gpu(benchmark::State& state, Gpu& gpu, double bytes,
                   const std::function<void()>& body) {
  const int calls = calls_for(bytes);
  gpu.seconds_of(calls, body);
  std::vector<double> times;
  for ([[maybe_unused]] const auto iteration : state) {
    times.push_back(gpu.seconds_of(calls, body));
    state.SetIterationTime(times.back());
  }
  return times.empty() ? HUGE_VAL : median(std::move(times));
}

/// A memory-bound op.
void time_memory_op(benchmark::State& state, Gpu& gpu, const DeviceOp& op) {
  const auto bytes = static_cast<double>(cost_of(op).bytes);
  const double seconds = time_on_gpu(state, gpu, bytes, [&] { gpu.run(op); });
  state.counters["GB/s"] = bytes / seconds / 1e9;
  state.counters["copy GB/s"] = copy_bandwidth() / 1e9;
  state.counters["% of copy"] = 100 * bytes / seconds / copy_bandwidth();
}

void cuda_copy(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  Gpu gpu(Precision::kFp32, 2 * Gpu::padded(n));
  time_memory_op(state, gpu, Copy{.to = gpu.take(1, n), .from = gpu.take(1, n)});
}

/// Only writes.
void cuda_fill(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  Gpu gpu(Precision::kFp32, Gpu::padded(n));
  time_memory_op(state, gpu, Fill{.out = gpu.take(1, n), .value = 1});
}

/// Reads almost nothing.
void cuda_sum_rows(benchmark::State& state) {
  const std::int64_t cols = state.range(0) / kBatch;
  Gpu gpu(Precision::kFp32, Gpu::padded(kBatch * cols) + Gpu::padded(cols));
  time_memory_op(state, gpu, SumRows{.out = gpu.take(1, cols), .in = gpu.take(kBatch, cols)});
}

/// The gradient of a ReLU together with the column sums of that gradient.
void cuda_relu_grad(benchmark::State& state) {
  const std::int64_t cols = state.range(0) / kBatch;
  Gpu gpu(Precision::kFp32, 2 * Gpu::padded(kBatch * cols) + Gpu::padded(cols));
  time_memory_op(state, gpu,
                 ActivationGrad{.grad = gpu.take(kBatch, cols),
                                .from = gpu.take(kBatch, cols),
                                .sums = gpu.take(1, cols)});
}

void cuda_adam(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  Gpu gpu(Precision::kFp32, 4 * Gpu::padded(n) + 64);
  const OptimizerUpdate op{.weights = gpu.take(1, n),
                           .grads = gpu.take(1, n),
                           .state = {gpu.take(1, n), gpu.take(1, n)},
                           .scalars = gpu.take(1, 2)};
  // Second moments are squares.
  gpu.run(Fill{.out = op.state[1], .value = 0.01F});
  gpu.run(Fill{.out = op.scalars, .value = 0.001F});
  time_memory_op(state, gpu, op);
  state.counters["bytes/param"] =
      static_cast<double>(cost_of(DeviceOp{op}).bytes - 8) / static_cast<double>(n);
}

/// A layer of the baseline model, of so many inputs and outputs, in a precision.
void cuda_linear_adam(benchmark::State& state) {
  const std::int64_t dim = state.range(0);
  const Precision precision = precision_of(state, 1);
  const DType type = type_of(precision);
  Gpu gpu(precision,
          5 * Gpu::padded(dim * dim) + 4 * Gpu::padded(dim) + 2 * Gpu::padded(kBatch * dim) + 64);
  LinearAdam op{.weight = gpu.take(dim, dim),
                .weight_moments1 = gpu.take(dim, dim),
                .weight_moments2 = gpu.take(dim, dim),
                .bias = gpu.take(1, dim),
                .bias_moments1 = gpu.take(1, dim),
                .bias_moments2 = gpu.take(1, dim),
                .grad_y = gpu.take(kBatch, dim, type),
                .x = gpu.take(kBatch, dim, type),
                .scalars = gpu.take(1, 2)};
  if (type != DType::kF32) {
    op.rounded_weight = gpu.take(dim, dim, type);
    op.rounded_bias = gpu.take(1, dim, type);
  }
  // Second moments are squares.
  for (const Tensor& tensor : {op.weight_moments2, op.bias_moments2}) {
    gpu.run(Fill{.out = tensor, .value = 0.01F});
  }
  gpu.run(Fill{.out = op.scalars, .value = 0.001F});
  time_memory_op(state, gpu, op);
}

/// Compared with a copy, which shows the cost of the arithmetic.
void cuda_randn(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  Gpu gpu(Precision::kFp32, Gpu::padded(n));
  time_memory_op(state, gpu, gpu.randn(gpu.take(1, n)));
}

void cuda_mse(benchmark::State& state) {
  const std::int64_t cols = state.range(0) / kBatch;
  Gpu gpu(Precision::kFp32, 3 * Gpu::padded(kBatch * cols) + 64);
  const PointwiseLoss op{.loss = gpu.take(1, 1),
                         .grad = gpu.take(kBatch, cols),
                         .output = gpu.take(kBatch, cols),
                         .target = gpu.take(kBatch, cols),
                         .count = kBatch * cols,
                         .activation = Activation::kRelu};
  time_memory_op(state, gpu, op);
}

void cuda_product(benchmark::State& state) {
  const auto direction = static_cast<Direction>(state.range(0));
  const std::int64_t dim = state.range(1);
  const Precision precision = precision_of(state, 2);
  const DType type = type_of(precision);
  // Enough weights that each has left the cache before it is used again.
  const std::int64_t weights =
      std::max<std::int64_t>(2, (std::int64_t{128} << 20) / (4 * dim * dim));
  Gpu gpu(precision, (weights + 1) * dim * dim + 2 * kBatch * dim + Gpu::padded(dim));
  const Tensor x = gpu.take(kBatch, dim, type);
  const Tensor y = gpu.take(kBatch, dim, type);
  const Tensor bias = gpu.take(1, dim, type);
  std::vector<Gemm> ops;
  for (std::int64_t i = 0; i < weights; ++i) {
    ops.push_back(linear_product(direction, x, y, gpu.take(dim, dim, type), bias));
  }
  gpu.prepare(ops.front());
  const Cost cost = cost_of(DeviceOp{ops.front()});
  std::size_t next = 0;
  const double seconds = time_on_gpu(state, gpu, static_cast<double>(cost.bytes),
                                     [&] { gpu.run(ops[next++ % ops.size()]); });
  const double rate = product_rate(precision);
  const double floor_s = std::max(static_cast<double>(cost.flops) / rate,
                                  static_cast<double>(cost.bytes) / copy_bandwidth());
  state.counters["TFLOP/s"] = static_cast<double>(cost.flops) / seconds / 1e12;
  state.counters["peak TFLOP/s"] = rate / 1e12;
  state.counters["GB/s"] = static_cast<double>(cost.bytes) / seconds / 1e9;
  state.counters["% of floor"] = 100 * floor_s / seconds;
  state.SetLabel(fmt::format("{} {}", name_of(precision),
                             direction == kForward         ? "forward"
                             : direction == kInputGradient ? "input gradient"
                                                           : "weight gradient"));
}

class StepTimes final : public TrainObserver {
 public:
  void on_step(const StepReport& report) override {
    if (!report.warmup) wall_s.push_back(report.wall_s);
  }
  void on_evaluation(const EvaluationReport& /*report*/) override {}

  std::vector<double> wall_s;
};

/// Weights between -1/sqrt(dim) and 1/sqrt(dim), as in nn.Linear, but cheap to generate.
FlatWeights quick_weights(const StepPrograms& programs, std::int64_t dim) {
  FlatWeights weights(
      static_cast<std::size_t>(programs.parameter_list().bytes() / bytes_of(DType::kF32)));
  const float bound = 1 / std::sqrt(static_cast<float>(dim));
  std::uint32_t number = 1;
  for (float& weight : weights) {
    number = number * 1664525U + 1013904223U;
    weight = bound * (static_cast<float>(number >> 8U) * 0x1p-23F - 1);
  }
  return weights;
}

/// How the steps of cuda_step update.
enum StepUpdate { kSeparate, kFused };

/// Lower bound of the seconds of a step's ops, one after the other: an op's bytes at the rate of a
/// copy, or its flops at the rate of a large product.
double min_step_s(const Program& step, Precision precision) {
  double seconds = 0;
  for (const Node& node : step.nodes()) {
    if (node.phase == Phase::kData) continue;
    const Cost cost = cost_of(node.op);
    seconds += std::max(static_cast<double>(cost.flops) / product_rate(precision),
                        static_cast<double>(cost.bytes) / copy_bandwidth());
  }
  return seconds;
}

/// A whole step of the baseline model: width, depth, update, precision, whether it is a graph.
void cuda_step(benchmark::State& state) {
  const std::int64_t dim = state.range(0);
  const auto update = static_cast<StepUpdate>(state.range(2));
  TrainConfig config;
  config.model.dim = dim;
  config.model.depth = state.range(1);
  config.training.steps = dim > 4096 ? 25 : dim > 512 ? 220 : 6;
  config.training.warmup = dim > 4096 ? 5 : dim > 512 ? 20 : 2;
  config.training.log_every = config.training.steps.value();
  config.training.update = update == kSeparate ? Update::kSeparate : Update::kFused;
  config.device = {
      .device = "cuda", .graph = state.range(4) != 0, .precision = precision_of(state, 3)};
  const StepSpec spec = spec_of(config, DeviceKind::kCuda, nullptr);
  const StepPrograms programs(spec);
  const double min_s = min_step_s(programs.train().program, config.device.precision);
  const auto device = make_cuda_device(config.device, 0);
  for ([[maybe_unused]] const auto iteration : state) {
    StepTimes times;
    Trainer(config, programs, {device.get()}, {}, nullptr, quick_weights(programs, dim)).run(times);
    const double seconds = median(times.wall_s);
    state.SetIterationTime(seconds);
    state.counters["floor ms"] = 1e3 * min_s;
    state.counters["% of floor"] = 100 * min_s / seconds;
  }
  state.SetLabel(fmt::format("{} {}{}", name_of(config.device.precision),
                             update == kSeparate ? "separate" : "fused",
                             config.device.graph ? ", graph" : ""));
}

using Run = void (*)(benchmark::State&);

/// Skips a benchmark that the device refuses, with the reason.
void guarded(benchmark::State& state, Run run) {
  try {
    run(state);
  } catch (const Error& error) {
    state.SkipWithError(error.what());
  }
}

benchmark::internal::Benchmark* add(const char* name, Run run) {
  return benchmark::RegisterBenchmark(name, guarded, run)
      ->UseManualTime()
      ->MinTime(0.02)
      ->Unit(benchmark::kMicrosecond);
}

void add_all() {
  // The baseline model's parameters at 1024 x 2 and at 8192 x 6; its batch at both.
  constexpr std::int64_t kSmall = 2'099'200;
  constexpr std::int64_t kLarge = 402'702'336;
  constexpr std::int64_t kBatches[] = {kBatch * 1024, kBatch * 8192};
  add("cuda_copy", cuda_copy)->Arg(kSmall)->Arg(kLarge);
  add("cuda_fill", cuda_fill)->Arg(kLarge);
  add("cuda_sum_rows", cuda_sum_rows)->Arg(kBatches[0])->Arg(kBatches[1])->Arg(kLarge);
  add("cuda_relu_grad", cuda_relu_grad)->Arg(kBatches[0])->Arg(kBatches[1])->Arg(kLarge);
  add("cuda_adam", cuda_adam)->Arg(kSmall)->Arg(kLarge);
  add("cuda_linear_adam", cuda_linear_adam)->ArgsProduct({{1024, 8192}, {0, 1, 2}});
  add("cuda_randn", cuda_randn)->Arg(kBatches[0])->Arg(kBatches[1])->Arg(kLarge);
  add("cuda_mse", cuda_mse)->Arg(kBatches[0])->Arg(kBatches[1]);
  add("cuda_product", cuda_product)
      ->ArgsProduct({{kForward, kInputGradient, kWeightGradient}, {1024, 8192}, {0, 1, 2}});
  std::vector<std::pair<std::int64_t, std::int64_t>> models{{8192, 6}, {1024, 2}};
  if (is_small(Gpu(Precision::kFp32, 0).info())) models = {{32, 3}};
  for (const auto& [dim, depth] : models) {
    benchmark::RegisterBenchmark("cuda_step", guarded, cuda_step)
        ->ArgsProduct({{dim}, {depth}, {kSeparate, kFused}, {0, 1, 2}, {0, 1}})
        ->UseManualTime()
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  }
}

void describe_gpu() {
  const DeviceInfo info = Gpu(Precision::kFp32, 0).info();
  benchmark::AddCustomContext("GPU", info.model);
  benchmark::AddCustomContext("products", info.product_library);
  benchmark::AddCustomContext("copy GB/s", fmt::format("{:.0f}", copy_bandwidth() / 1e9));
}

}  // namespace
}  // namespace barestep::bench

int main(int argc, char** argv) {
  using namespace barestep;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return static_cast<int>(ExitCode::kUsage);
  try {
    if (cuda_device_count() == 0) {
      const std::string why = why_no_cuda_device();
      fmt::print(stderr, "barestep_cuda_bench: skipped: {}\n",
                 why.empty() ? "this build has no CUDA" : why);
      return static_cast<int>(ExitCode::kNoDevice);
    }
    bench::describe_gpu();
    bench::add_all();
    benchmark::RunSpecifiedBenchmarks();
  } catch (const Error& error) {
    fmt::print(stderr, "barestep_cuda_bench: error: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
