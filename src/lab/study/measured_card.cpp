#include "lab/study/measured_card.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>
#include <variant>

#include "core/clock.h"
#include "core/error.h"
#include "core/host.h"
#include "core/index.h"
#include "core/json_document.h"
#include "core/output_file.h"
#include "core/statistics.h"
#include "core/units.h"
#include "kernels/make_device.h"
#include "lab/child.h"
#include "lab/predict/simulator.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"
#include "lab/report/samples.h"
#include "lab/study/measurement.h"
#include "lab/study/run_workload.h"
#include "model/linear.h"
#include "profiler/peaks.h"

namespace barestep {

Machine this_machine() {
  Machine machine;
  DeviceConfig config;
  config.device = "cpu";
  const DeviceInfo cpu = make_device(config)->info();
  machine.processor = cpu.model;
  machine.cores = cpu.threads;
  machine.memory_bytes = host_memory().total_bytes;
  machine.gpus = cuda_device_count();
  if (machine.gpus > 0) {
    config.device = "cuda:0";
    machine.gpu = make_device(config)->info().model;
  }
  utsname system{};
  if (::uname(&system) == 0) machine.system = fmt::format("{} {}", system.sysname, system.release);
  return machine;
}

std::vector<std::pair<std::string, std::string>> facts_of(const Machine& machine) {
  std::vector<std::pair<std::string, std::string>> facts = {
      {"processor", machine.processor},
      {"cores", std::to_string(machine.cores)},
      {"memory", human_bytes(machine.memory_bytes)},
      {"system", machine.system}};
  if (machine.gpus > 0)
    facts.emplace_back("GPU", fmt::format("{} x {}", machine.gpus, machine.gpu));
  return facts;
}

namespace {

/// Numbers of fp32 that ops are measured on: more than caches hold and, on a GPU, several layers of
/// kMaxGpuWidth with the state of their optimizer.
std::int64_t measured_numbers(const Device& device) {
  constexpr std::int64_t kCpuBytes = std::int64_t{128} << 20;
  constexpr std::int64_t kGpuBytes = std::int64_t{4} << 30;
  if (device.kind() != DeviceKind::kCuda) return kCpuBytes / 4;
  return std::min(kGpuBytes, device.info().free_bytes / 2) / 4;
}

constexpr std::int64_t kMaxGpuWidth = 8192;
/// Ops are timed in batches, at least kBatches of them, and the median batch counts. Batches are
/// short, so that a brief disturbance spoils few of them.
constexpr double kBatchSeconds = 1e-3;
constexpr int kBatches = 5;
constexpr int kReducedBatches = 15;
constexpr double kContendedSeconds = 0.02;
constexpr int kLayers = 6;
constexpr std::int64_t kMaxReducedBytes = std::int64_t{32} << 20;
/// An exchange that takes longer crosses a slow cable, in proportion to its bytes.
constexpr double kSlowSeconds = 0.1;

/// Places tensors in the measured memory one after the other, and starts over at its end.
class Tensors {
 public:
  /// `numbers` in all, from number `first` on.
  explicit Tensors(std::int64_t numbers, std::int64_t first = 0)
      : numbers_(numbers), next_(first) {}

  Tensor take(std::int64_t rows, std::int64_t cols) {
    constexpr std::int64_t kAligned = 16;  // numbers of 64 bytes
    if (next_ + rows * cols > numbers_) next_ = 0;
    const Tensor tensor{0, 4 * next_, rows, cols};
    next_ += (rows * cols + kAligned - 1) / kAligned * kAligned;
    return tensor;
  }

 private:
  std::int64_t numbers_;
  std::int64_t next_;
};

/// Times ops and collectives in memory that is held during the measurement.
class RankBench {
 public:
  RankBench(const MeasuringRank& rank, bool quick)
      : ranks_(rank.ranks),
        transport_(rank.transport),
        device_(rank.device),
        seconds_(quick ? 0.02 : 0.012),
        numbers_(measured_numbers(rank.device)),
        ops_(rank.device, 4 * numbers_, "rates"),
        collectives_(rank, ops_.addresses()) {}

  /// Numbers in the measured memory.
  [[nodiscard]] std::int64_t numbers() const { return numbers_; }
  /// Whose memory that is.
  [[nodiscard]] BenchStream& stream() { return ops_; }

  /// Those that measure together.
  [[nodiscard]] Group& ranks() { return ranks_; }
  /// Of the slowest rank, for which the others wait.
  double slowest_s(double mine_s) { return largest_of_ranks(ranks_, mine_s); }

  /// Seconds of one op while all ranks run the same one: median of several batches, on the slowest
  /// rank.
  double seconds_of(const std::vector<DeviceOp>& ops) {
    for (const DeviceOp& op : ops) device_.prepare(op);
    run(ops, 1);
    const double once_s = run(ops, 2) / 2;
    const auto times = static_cast<std::size_t>(std::clamp(kBatchSeconds / once_s, 1.0, 1e4));
    ranks_.barrier();
    // All ranks continue until the same time, so none measures a machine that is already idle.
    const double end_s = now_s() + seconds_;
    std::vector<double> batches;
    while (batches.size() < kBatches || now_s() < end_s) {
      batches.push_back(run(ops, times) / static_cast<double>(times));
    }
    return slowest_s(median(batches));
  }

  /// Calls it again and again, for twice the time of an op. All ranks begin at once each time, as
  /// they do when they exchange in each step: updates, which need the memory, meet updates.
  template <class Step>
  void repeat(const Step& step) {
    constexpr double kSteps = 3, kMostSteps = 1e4;
    step();  // warms up
    ranks_.barrier();
    const double begin_s = now_s();
    step();
    const double once_s = slowest_s(now_s() - begin_s);
    for (double left = std::clamp(2 * seconds_ / once_s, kSteps, kMostSteps); left > 0; --left) {
      ranks_.barrier();
      step();
    }
  }

  /// Seconds that the host, or a lane that waits for the host, takes to go on after it has slept.
  double wake_s(const DeviceOp& op) {
    device_.prepare(op);
    run({op}, 1);
    std::vector<double> sleeps;
    ranks_.barrier();
    const double end_s = now_s() + seconds_;
    while (sleeps.size() < kBatches || now_s() < end_s) {
      const double begin_s = now_s();
      const double worked_s = run({op}, 1);
      sleeps.push_back((now_s() - begin_s - worked_s) / 2);
    }
    return mean_of_ranks(ranks_, median(sleeps));
  }

  /// How long a lane sleeps until another lane has worked, and what it takes to go on: two lanes
  /// wait for each other in turn. They also work at the same time, as devices do, so that the
  /// system gives each of them a core.
  std::pair<double, double> wake_on_other_core(const std::vector<DeviceOp>& ops) {
    constexpr int kRounds = 8;
    const double op_s = seconds_of(ops);
    const auto first = device_.new_stream("first"), second = device_.new_stream("second");
    const auto of_first = device_.new_event(EventUse::kOrder);
    const auto of_second = device_.new_event(EventUse::kOrder);
    const auto run_on = [&](Stream& stream, const DeviceOp& op) {
      device_.run(op, ops_.addresses(), stream, {});
    };
    std::vector<double> sleeps;
    ranks_.barrier();
    for (const double end_s = now_s() + seconds_; sleeps.size() < kBatches || now_s() < end_s;) {
      const double begin_s = now_s();
      for (int round = 0; round < kRounds; ++round) {
        run_on(*first, ops.front());
        of_first->record(*first);
        run_on(*first, ops.front());
        second->wait(*of_first);
        run_on(*second, ops.back());
        run_on(*second, ops.back());
        of_second->record(*second);
        first->wait(*of_second);
      }
      first->synchronize();
      sleeps.push_back(((now_s() - begin_s) / kRounds - 3 * op_s) / 2);
    }
    second->synchronize();
    const double wake_s = std::max(0.0, mean_of_ranks(ranks_, median(sleeps)));
    return {op_s + wake_s / 2, wake_s};
  }

  /// Seconds of one of the collectives, as the mean over all ranks. A few batches do where one
  /// takes long: over a slow cable noise is small.
  double seconds_of(const std::vector<std::unique_ptr<Collective>>& collectives) {
    for (const auto& collective : collectives) transport_.prepare(*collective);
    const auto seconds = [&](int batches) {
      return median(collectives_.batches(collectives, 2 * kBatchSeconds, batches));
    };
    const double of_few_s = seconds(3);
    return of_few_s > kSlowSeconds ? of_few_s : seconds(kReducedBatches);
  }

  /// Time of collectives and ops on two streams, relative to one after the other.
  double contention_of(const std::vector<std::unique_ptr<Collective>>& collectives,
                       const std::vector<DeviceOp>& ops) {
    const double collective_s = seconds_of(collectives);
    const double op_s = seconds_of(ops);
    const auto reduced = static_cast<std::size_t>(std::ceil(kContendedSeconds / collective_s));
    const auto computed = static_cast<std::size_t>(std::ceil(kContendedSeconds / op_s));
    std::vector<double> factors;
    for (int i = 0; i < kBatches; ++i) {
      ranks_.barrier();
      const double begin_s = now_s();
      for (std::size_t j = 0; j < computed; ++j) {
        ops_.run(ops[j % ops.size()]);
      }
      collectives_.run(collectives, reduced);
      ops_.synchronize();
      factors.push_back((now_s() - begin_s) / (static_cast<double>(reduced) * collective_s +
                                               static_cast<double>(computed) * op_s));
    }
    return std::max(1.0, mean_of_ranks(ranks_, median(factors)));
  }

 private:
  /// Device seconds of `count` ops, taken in turn from where the last call ended.
  double run(const std::vector<DeviceOp>& ops, std::size_t count) {
    return ops_.seconds_of([&] {
      for (std::size_t i = 0; i < count; ++i) ops_.run(ops[next_++ % ops.size()]);
    });
  }

  Group& ranks_;
  Transport& transport_;
  Device& device_;
  double seconds_;  // for each size
  std::int64_t numbers_;
  BenchStream ops_;
  CollectiveBench collectives_;
  std::size_t next_ = 0;
};

using MakeOp = DeviceOp (*)(Tensors& weights, Tensors& activations, std::int64_t rows,
                            std::int64_t width);

DeviceOp forward_product(Tensors& weights, Tensors& activations, std::int64_t rows,
                         std::int64_t width) {
  return Gemm{.c = activations.take(rows, width),
              .a = activations.take(rows, width),
              .b = weights.take(width, width),
              .transpose_b = true,
              .bias = weights.take(1, width),
              .activation = Activation::kRelu};
}

DeviceOp weight_gradient(Tensors& weights, Tensors& activations, std::int64_t rows,
                         std::int64_t width) {
  return Gemm{.c = weights.take(width, width),
              .a = activations.take(rows, width),
              .b = activations.take(rows, width),
              .transpose_a = true};
}

/// A kind of product of a batch and its weights.
struct MeasuredProduct {
  MakeOp make = nullptr;
  std::int64_t rows = 1, width = 1;

  /// Of so many layers, whose weights are placed after the memory of four activations.
  [[nodiscard]] std::vector<DeviceOp> of_layers(std::int64_t layers, std::int64_t numbers) const {
    Tensors weights(numbers, 4 * (rows + 1) * width);
    std::vector<DeviceOp> ops;
    for (std::int64_t i = 0; i < layers; ++i) {
      Tensors activations(numbers);
      ops.push_back(make(weights, activations, rows, width));
    }
    return ops;
  }
};

/// The step of an MLP on one device, whose ops are timed as they run in training: after the update
/// on other cores, with gradients that others have written, and after as many bytes as pass through
/// the caches from one step to the next. Alone and again and again they are faster.
class TimedStep {
 public:
  /// Its buffers are in the stream's memory, from the beginning.
  TimedStep(Device& device, BenchStream& stream, const Run& run)
      : programs_(run), plan_(programs_.steps().buffers()), bench_(stream) {
    const Program& program = programs_.step();
    const Buffers& buffers = program.buffers();
    std::byte* const memory = bench_.addresses().at<std::byte>({.buffer = 0, .dtype = DType::kU8});
    std::vector<std::byte*> addresses;
    for (BufferId buffer = 0; buffer < buffers.size(); ++buffer) {
      const bool is_here = !buffers[buffer].pinned;
      addresses.push_back(is_here ? memory + plan_.offset_bytes(buffer, 0) : nullptr);
    }
    addresses_ = Addresses(std::move(addresses));
    const std::vector<Reach> reaches = reaches_of(program);
    for (NodeId id = 0; id < program.size(); ++id) {
      const Node& node = program.node(id);
      const auto* const op = std::get_if<DeviceOp>(&node.op);
      if (op == nullptr || node.lane != Lane::kCompute || !is_on_device(*op, buffers)) continue;
      ops_.push_back(*op);
      reaches_.push_back(at(reaches, id));
      device.prepare(*op);
    }
  }

  [[nodiscard]] std::int64_t bytes() const { return plan_.device_bytes(0); }

  /// The first one warms up.
  void run() {
    const std::vector<double> step = bench_.seconds_of_each(ops_, addresses_);
    if (std::exchange(is_warm_, true)) seconds_.insert(seconds_.end(), step.begin(), step.end());
  }

  /// Rates of the ops that `is_asked`, in the steps so far. All ranks call it.
  template <class IsAsked>
  void add_rates(const IsAsked& is_asked, Group& ranks, std::vector<OpRate>& rates) const {
    struct Sums {
      double work = 0, seconds = 0, reach = 0;
    };
    const std::vector<double> seconds = seconds_of_ops(ranks);
    std::map<std::tuple<std::string, double, double>, Sums> by_size;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      if (!is_asked(ops_[i])) continue;
      const OpSize size = size_of(ops_[i]);
      Sums& sums = by_size[{size.op, size.rows, size.width}];
      sums.work += size.work;
      sums.seconds += seconds[i];
      if (product_of(ops_[i])) sums.reach += size.work * reaches_[i].bytes;
    }
    for (const auto& [size, sums] : by_size) {
      const auto& [op, rows, width] = size;
      rates.push_back({op, rows, width, sums.work / sums.seconds, sums.reach / sums.work});
    }
  }

 private:
  static bool is_on_device(const DeviceOp& op, const Buffers& buffers) {
    return std::ranges::none_of(accesses_of(op), [&](const Access& access) {
      return buffers[access.tensor.buffer].pinned;
    });
  }

  /// The median over the steps; each step counts on the rank that took longest for it, for which
  /// the others wait.
  [[nodiscard]] std::vector<double> seconds_of_ops(Group& ranks) const {
    const std::vector<std::vector<double>> of_ranks = gather_lists(ranks, seconds_);
    std::vector<std::vector<double>> of_steps(ops_.size());
    for (std::size_t first = 0; first < seconds_.size(); first += ops_.size()) {
      const auto step_of = [&](const std::vector<double>& rank) {
        return std::span(rank).subspan(first, ops_.size());
      };
      const auto step_s = [&](const std::vector<double>& rank) {
        const auto step = step_of(rank);
        return std::accumulate(step.begin(), step.end(), 0.0);
      };
      const auto slowest = step_of(*std::ranges::max_element(of_ranks, {}, step_s));
      for (std::size_t i = 0; i < ops_.size(); ++i) of_steps[i].push_back(slowest[i]);
    }
    std::vector<double> medians;
    for (const std::vector<double>& steps : of_steps) medians.push_back(median(steps));
    return medians;
  }

  WorkloadPrograms programs_;
  MemoryPlan plan_;
  BenchStream& bench_;
  Addresses addresses_;
  std::vector<DeviceOp> ops_;
  std::vector<Reach> reaches_;
  std::vector<double> seconds_{};  // of each op of one step, then of the next
  bool is_warm_ = false;
};

/// Of a width and a batch: numbers of layers whose weights, gradients and moments are in the
/// nearest cache, in larger ones, and in memory; on a GPU, or of many rows, only one.
std::vector<std::int64_t> depths_measured(std::int64_t width, std::int64_t rows, bool on_gpu,
                                          std::int64_t numbers, bool quick) {
  constexpr std::int64_t kMostLayers = 128, kManyRows = 512, kFewLayers = 2;
  constexpr std::array<std::int64_t, 2> kCached = {std::int64_t{16} << 20, std::int64_t{48} << 20};
  const std::int64_t state = 4 * width * (width + 1), activations = 2 * rows * width;
  const std::int64_t most =
      std::clamp<std::int64_t>((numbers - 2 * activations) / (state + activations), kFewLayers,
                               on_gpu ? 4 * kLayers : kMostLayers);
  if (on_gpu) return {most};
  if (rows > kManyRows) return {std::min<std::int64_t>(most, 2 * kFewLayers)};
  std::vector<std::int64_t> depths = {kFewLayers};
  for (const std::int64_t bytes : kCached) {
    const std::int64_t count = bytes / (4 * state);
    if (!quick && count >= 2 * depths.back() && 2 * count <= most) depths.push_back(count);
  }
  if (most > depths.back()) depths.push_back(most);
  return depths;
}

/// Steps whose ops are timed. Of two micro-steps the second adds to the gradients of weights.
struct RatedStep {
  Update update = Update::kSeparate;
  std::int64_t accumulate = 1;

  /// Whether the rates of this op are those of such steps: of an update, after any batch.
  [[nodiscard]] bool measures(const DeviceOp& op, std::int64_t rows) const {
    constexpr std::int64_t kRowsOfUpdate = 64;
    if (update == Update::kFused) return std::holds_alternative<LinearAdam>(op);
    const auto* const gemm = std::get_if<Gemm>(&op);
    if (accumulate > 1) return gemm != nullptr && gemm->transpose_a && gemm->beta != 0;
    return gemm != nullptr ||
           (rows == kRowsOfUpdate && std::holds_alternative<OptimizerUpdate>(op));
  }
};

/// Products, and updates of layers with them and after them.
void measure_step(std::int64_t width, std::int64_t depth, std::int64_t rows, Device& device,
                  RankBench& bench, std::vector<OpRate>& rates) {
  // Enough for what adding takes: from one size to the next it changes little.
  constexpr std::array<std::int64_t, 5> kAddedRows = {1, 8, 64, 256, 512};
  for (const RatedStep& of :
       {RatedStep{}, RatedStep{.update = Update::kFused}, RatedStep{.accumulate = 2}}) {
    Run run{.on_gpu = device.kind() == DeviceKind::kCuda};
    run.config.parallel.scheme = SchemeKind::kSingle;
    run.config.model.dim = width;
    run.config.model.depth = depth;
    run.config.data.batch_size = rows;
    run.config.training.update = of.update;
    run.config.training.accumulate = of.accumulate;
    run.config.device.device = run.on_gpu ? "cuda" : "cpu";
    if (of.accumulate > 1 && std::ranges::find(kAddedRows, rows) == kAddedRows.end()) continue;
    TimedStep step(device, bench.stream(), run);
    if (step.bytes() > 4 * bench.numbers()) continue;
    bench.repeat([&] { step.run(); });
    step.add_rates([&](const DeviceOp& op) { return of.measures(op, rows); }, bench.ranks(), rates);
  }
}

void measure_steps(RankBench& bench, Device& device, bool quick, std::vector<OpRate>& rates) {
  const bool on_gpu = device.kind() == DeviceKind::kCuda;
  // A few rows take the time of their weights, and narrow layers that of their launch.
  std::vector<std::int64_t> batches = {1, 16, 64, 256};
  if (!quick) batches = {1, 4, 8, 16, 32, 64, 128, 256, 512, 4096};
  std::vector<std::int64_t> widths = {64, 256, 512};
  if (!quick) widths = {64, 256, 512, 1024, 2048};
  if (on_gpu) widths = {1024, 2048, 4096, kMaxGpuWidth};
  if (on_gpu && quick) widths = {1024, kMaxGpuWidth};
  for (const std::int64_t width : widths) {
    if (on_gpu && 4 * width * width > bench.numbers()) continue;  // a small GPU
    for (const std::int64_t rows : batches) {
      if (4 * (rows + 1) * width + 4 * width * width > bench.numbers()) continue;
      for (const std::int64_t depth :
           depths_measured(width, rows, on_gpu, bench.numbers(), quick)) {
        measure_step(width, depth, rows, device, bench, rates);
      }
    }
  }
}

constexpr std::int64_t kActivatedNumbers = 1 << 16;
constexpr std::int64_t kSleptNumbers = 1 << 22;  // of an op that takes as long as a step

/// Ops over this many of the memory's numbers.
std::vector<DeviceOp> ops_over(std::int64_t count, std::int64_t numbers) {
  constexpr std::int64_t kCols = 256;
  const std::int64_t rows = std::max<std::int64_t>(1, count / kCols);
  Tensors memory(numbers);
  const auto flat = [&] { return memory.take(1, count); };
  const auto matrix = [&] { return memory.take(rows, std::min(count, kCols)); };
  const auto row = [&](std::int64_t cols) { return memory.take(1, cols); };
  std::vector<DeviceOp> ops;
  // Each op is on tensors from the beginning.
  const auto add = [&](DeviceOp op) {
    ops.push_back(std::move(op));
    memory = Tensors(numbers);
  };
  add(Copy{.to = flat(), .from = flat()});
  add(SumRows{.out = flat(), .in = flat(), .beta = 1});
  for (const Activation activation : kValuesOf<Activation>) {
    const bool is_measured = activation == Activation::kRelu || count == kActivatedNumbers;
    if (activation == Activation::kNone || !is_measured) continue;
    add(BiasActivation{
        .values = matrix(), .bias = row(std::min(count, kCols)), .activation = activation});
    add(ActivationGrad{.grad = matrix(), .from = matrix(), .activation = activation});
  }
  // As in training, where it includes the gradient of the bias up to this many rows.
  const std::int64_t few = std::min(rows, kMaxRowsOfSums);
  const auto wide = [&] { return memory.take(few, count / few); };
  add(ActivationGrad{.grad = wide(), .from = wide(), .sums = row(count / few)});
  Tensor step = row(1);
  step.dtype = DType::kI32;
  add(Dropout{.values = matrix(), .step = step});
  add(SumRows{.out = row(std::min(count, kCols)), .in = matrix()});
  add(PointwiseLoss{.loss = row(1),
                    .grad = matrix(),
                    .output = matrix(),
                    .target = matrix(),
                    .count = count,
                    .activation = Activation::kRelu});
  return ops;
}

/// Ops of transformers over this many of the memory's numbers, in rows of 256.
std::vector<DeviceOp> norm_ops(std::int64_t count, std::int64_t numbers) {
  constexpr std::int64_t kCols = 256;
  const std::int64_t rows = std::max<std::int64_t>(1, count / kCols);
  Tensors memory(numbers);
  const auto matrix = [&] { return memory.take(rows, kCols); };
  const auto column = [&] { return memory.take(rows, 1); };
  const auto row = [&] { return memory.take(1, kCols); };
  std::vector<DeviceOp> ops;
  const auto add = [&](DeviceOp op) {
    ops.push_back(std::move(op));
    memory = Tensors(numbers);
  };
  add(Add{.out = matrix(), .a = matrix(), .b = matrix()});
  add(LayerNorm{.y = matrix(),
                .mean = column(),
                .rstd = column(),
                .x = matrix(),
                .weight = row(),
                .bias = row()});
  add(LayerNormGrad{.grad_weight = row(),
                    .grad_bias = row(),
                    .grad_x = matrix(),
                    .grad_y = matrix(),
                    .x = matrix(),
                    .mean = column(),
                    .rstd = column(),
                    .weight = row()});
  return ops;
}

/// What activations add to products of many rows, of which training keeps what it needs.
void measure_activations(RankBench& bench, bool quick, std::vector<OpRate>& rates) {
  constexpr std::int64_t kWidth = 256;
  const std::int64_t rows = quick ? 1024 : 8192;
  const auto seconds_of = [&](Activation activation) {
    Tensors memory(bench.numbers());
    Gemm product{.c = memory.take(rows, kWidth),
                 .a = memory.take(rows, kWidth),
                 .b = memory.take(kWidth, kWidth),
                 .transpose_b = true,
                 .bias = memory.take(1, kWidth),
                 .activation = activation};
    if (traits_of(activation).grad_from == GradFrom::kInput)
      product.pre_activation = memory.take(rows, kWidth);
    return bench.seconds_of({DeviceOp(product)});
  };
  constexpr double kLeastShare = 1e-3;
  const double relu_s = seconds_of(Activation::kRelu);
  for (const Activation activation : kValuesOf<Activation>) {
    if (activation == Activation::kNone || activation == Activation::kRelu) continue;
    OpSize added = added_to_product({.rows = rows, .cols = kWidth}, activation);
    const double more_s = std::max(seconds_of(activation) - relu_s, kLeastShare * relu_s);
    rates.push_back({std::move(added.op), added.rows, added.width, added.work / more_s});
  }
}

/// Attention of two heads over sequences of this length, as many as in a batch of some thousand
/// rows, and its gradient.
std::vector<DeviceOp> attention_ops(std::int64_t length, AttentionForm form, std::int64_t numbers) {
  constexpr std::int64_t kHeads = 2, kHeadWidth = 64, kRows = 4096;
  Tensors memory(numbers);
  const AttentionShape shape{.heads = kHeads, .length = length, .form = form};
  const std::int64_t fitting = numbers / 4 / shape.kept_cols();
  const std::int64_t sequences = std::max<std::int64_t>(std::min(kRows, fitting) / length, 1);
  const auto take = [&](std::int64_t cols) { return memory.take(sequences * length, cols); };
  const Tensor qkv = take(3 * kHeads * kHeadWidth), out = take(kHeads * kHeadWidth);
  const Tensor kept = take(shape.kept_cols());
  AttentionGrad gradient{.grad_qkv = take(qkv.cols),
                         .qkv = qkv,
                         .out = out,
                         .grad_out = take(out.cols),
                         .kept = kept,
                         .shape = shape};
  if (const std::int64_t cols = gradient.scratch_cols(); cols > 0) gradient.scratch = take(cols);
  return {Attention{.out = out, .kept = kept, .qkv = qkv, .shape = shape}, gradient};
}

void measure_other_ops(RankBench& bench, bool quick, std::vector<OpRate>& rates) {
  const auto measure = [&](const DeviceOp& op) {
    OpSize size = size_of(op);
    rates.push_back(
        {std::move(size.op), size.rows, size.width, size.work / bench.seconds_of({op})});
  };
  for (const AttentionForm form : kValuesOf<AttentionForm>) {
    // The longest: its keys and values, or its scores, exceed the caches of a core, or all.
    const std::int64_t longest = form == AttentionForm::kFlash ? 4096 : 2048;
    for (const std::int64_t length : {std::int64_t{128}, std::int64_t{1024}, longest}) {
      if (quick && length > 128) continue;
      for (const DeviceOp& op : attention_ops(length, form, bench.numbers())) measure(op);
    }
  }
  measure_activations(bench, quick, rates);
  // Where caches end, rates depend on the size most strongly.
  std::vector<std::int64_t> counts = {1 << 12, kActivatedNumbers, 1 << 20};
  if (!quick) {
    counts = {1 << 8,  1 << 12, 1 << 14, 1 << 16, 1 << 18,
              1 << 20, 1 << 21, 3 << 20, 1 << 22, 6 << 20};
  }
  const std::int64_t most = bench.numbers() / 5;
  for (const std::int64_t count : {std::int64_t{1} << 24, std::int64_t{1} << 26, most}) {
    if (count <= most) counts.push_back(count);
  }
  for (const std::int64_t count : counts) {
    for (const DeviceOp& op : ops_over(count, bench.numbers())) {
      // No model has that many numbers in a batch, but in its state and gradients.
      const auto* const sum = std::get_if<SumRows>(&op);
      const bool is_state =
          std::holds_alternative<Copy>(op) || (sum != nullptr && sum->in.rows == 1);
      if (is_state || count <= 1 << 21) measure(op);
    }
    if (count > 1 << 21) continue;
    for (const DeviceOp& op : norm_ops(count, bench.numbers())) measure(op);
  }
}

/// Numbers drawn from the CPU's stream, whose state is zero: that takes as long as any other.
OpRate rate_of_draws(RankBench& bench) {
  constexpr std::int64_t kDrawn = 1 << 14;
  Tensors memory(bench.numbers());
  Tensor state = memory.take(1, state_bytes(Generator::kTorchCpu));
  state.dtype = DType::kU8;
  const DeviceOp draw = Randn{.out = memory.take(1, kDrawn), .state = state};
  std::ignore = bench.seconds_of({DeviceOp(Fill{.out = state})});
  const OpSize size = size_of(draw);
  return {size.op, size.rows, size.width, size.work / bench.seconds_of({draw})};
}

/// Two products of so many rows, of other numbers.
std::vector<DeviceOp> lane_ops(std::int64_t rows, std::int64_t numbers) {
  const MeasuredProduct product{forward_product, rows, 512};
  std::vector<DeviceOp> ops = product.of_layers(2, numbers);
  Tensors others(numbers, numbers / 2);
  std::get<Gemm>(ops.back()).c = others.take(product.rows, product.width);
  return ops;
}

/// One of a kind over these numbers; of an exchange with a peer, over half of them each way.
Collective bench_exchange(ExchangeKind kind, const Tensor& row, const Group& ranks) {
  using enum ExchangeKind;
  const std::int64_t share = std::max<std::int64_t>(row.cols / ranks.size(), 1),
                     half = row.cols / 2;
  const Tensor shares{row.buffer, row.offset_bytes, row.cols / share, share};
  if (kind == kAllReduce) return AllReduce{.tensors = {row}, .scale = 0.5F};
  if (kind == kReduceScatter) return ReduceScatter{.tensors = {shares}, .scale = 0.5F};
  if (kind == kAllGather) return AllGather{.tensors = {shares}};
  if (kind == kBroadcast) return Broadcast{.tensors = {row}};
  if (kind == kReduce) return Reduce{.tensors = {row}};
  return SendReceive{.sends = row.flat_slice(0, half),
                     .receives = row.flat_slice(half, half),
                     .peer = ranks.rank() ^ 1,
                     .axis = Axis::kAll};
}

/// Exchanges as cold as in training, each in another place. Held by pointer, because communicators
/// identify collectives by address.
std::vector<std::unique_ptr<Collective>> bench_exchanges(ExchangeKind kind, std::int64_t bytes,
                                                         std::int64_t numbers, const Group& ranks) {
  std::vector<std::unique_ptr<Collective>> all;
  Tensors gradients(numbers);
  const std::int64_t count = bytes / 4 * (kind == ExchangeKind::kSendReceive ? 2 : 1);
  for (std::int64_t i = 0; i < std::clamp<std::int64_t>(numbers / (count + 16), 1, 8); ++i) {
    const Tensor row = gradients.take(1, count);
    all.push_back(std::make_unique<Collective>(bench_exchange(kind, row, ranks)));
  }
  return all;
}

/// Measures the rates of products by batch and width, those of the optimizer and other ops by their
/// bytes, and times of an all-reduce by size. All ranks call it, and measure at the same time. An
/// op runs in turn on several tensors, as many as a model of six layers has, so weights are as cold
/// as in training. Takes some tens of milliseconds per size, fewer sizes if `quick`, and 128 MiB of
/// memory, on a GPU 4 GiB, which it frees. Throws Error(kMemory). Blocks.
MachineLoad measure_rank(const MeasuringRank& rank, bool quick) {
  RankBench bench(rank, quick);
  MachineLoad measured;
  measure_steps(bench, rank.device, quick, measured.rates);
  measure_other_ops(bench, quick, measured.rates);
  if (rank.device.kind() == DeviceKind::kCpu) {
    measured.rates.push_back(rate_of_draws(bench));
    measured.wake_s = bench.wake_s(ops_over(kSleptNumbers, bench.numbers()).front());
    // Several ranks leave no core for a second lane.
    const bool has_cores =
        rank.ranks.size() == 1 && rank.device.info().threads == 1 && usable_cpus() > 1;
    for (const std::int64_t rows : {16, 64, 256, 1024}) {
      if (!has_cores) continue;
      measured.wakes.push_back(bench.wake_on_other_core(lane_ops(rows, bench.numbers())));
    }
  }
  if (rank.ranks.size() == 1) return measured;
  std::vector<std::vector<std::unique_ptr<Collective>>> kept;
  const auto exchanges = [&](ExchangeKind kind, std::int64_t bytes) -> const auto& {
    return kept.emplace_back(bench_exchanges(kind, bytes, bench.numbers(), rank.ranks));
  };
  for (const ExchangeKind kind : kValuesOf<ExchangeKind>) {
    const bool is_sum = kind == ExchangeKind::kAllReduce;
    const std::int64_t factor = (is_sum ? 4 : 16) * (quick ? 2 : 1);
    double seconds = 0;
    for (std::int64_t bytes = is_sum ? 4 : 16; bytes <= kMaxReducedBytes && seconds < kSlowSeconds;
         bytes *= factor) {
      seconds = bench.seconds_of(exchanges(kind, bytes));
      measured.exchanges[kind].emplace_back(static_cast<double>(bytes), seconds);
    }
  }
  constexpr std::int64_t kLayerBytes = std::int64_t{4} << 20;
  measured.contention =
      bench.contention_of(exchanges(ExchangeKind::kAllReduce, kLayerBytes),
                          MeasuredProduct{weight_gradient, 32, quick ? 256 : 1024}.of_layers(
                              4 * kLayers, bench.numbers()));
  return measured;
}

constexpr int kMaxMeasuredRanks = 16;
constexpr std::int64_t kMaxRatesBytes = std::int64_t{16} << 20;
constexpr const char* kCpuSeconds = "cpu_s";  // of all ranks together
constexpr double kMaxCpuSeconds = 1e9;

/// One device with all cores, and ranks with one core each; on GPUs, only ranks.
std::vector<MachineLoad> loads_of(const CardRequest& request) {
  const int units = request.on_gpu ? request.machine.gpus : request.machine.cores;
  std::vector<MachineLoad> loads;
  if (!request.on_gpu && units > 1) loads.push_back({.ranks = 1, .threads = units});
  const bool has_mpirun = !find_on_path("mpirun").empty();
  // Two ranks on a single core are measured too: nothing else gives the link's rate.
  const int max = request.on_gpu ? units : std::max(units, 2);
  for (int ranks = 1; ranks <= std::min(max, kMaxMeasuredRanks); ranks *= 2) {
    if (ranks == 1 || has_mpirun) {
      loads.push_back({.ranks = ranks, .threads = request.on_gpu ? 0 : 1});
    }
  }
  return loads;
}

std::string text_of(const MachineLoad& load) {
  return fmt::format("rates of {}{}", counted(load.ranks, "rank"),
                     load.threads > 1 ? fmt::format(" with {} threads", load.threads) : "");
}

/// Fills in what the ranks measure. Returns the share of the cores that others used meanwhile.
double measure_rates(const CardRequest& request, MachineLoad& load) {
  const std::filesystem::path file = request.scratch / "rank-rates.json";
  std::vector<std::string> command;
  const bool is_alone = load.ranks == 1;
  if (!is_alone) command = {find_on_path("mpirun"), "-np", std::to_string(load.ranks)};
  command.insert(command.end(),
                 {(request.programs / "mlp_lab").string(), "measure-rank", "--output",
                  file.string(), "--device", request.on_gpu ? "cuda" : "cpu"});
  if (load.threads > 0) {
    command.insert(command.end(), {"--threads", std::to_string(load.threads)});
  }
  if (request.quick) command.emplace_back("--quick");
  if (is_alone) command.emplace_back("--alone");
  const CoreWatch watch;
  const ChildResult child = run_child(command, mpi_environment());
  if (child.exit_code != 0) {
    fail(ExitCode::kTryAgain,
         {"rates of this machine", counted(load.ranks, "rank"),
          fmt::format("measuring ended with code {}: {}", child.exit_code, error_line(child.err)),
          "run the same command again"});
  }
  const JsonDocument measured(file, kMaxRatesBytes, "rates of this machine",
                              "run the same command again");
  read_measured(measured.root(), load);
  // Ranks in namespaces of their own are no children of this process.
  const double ranks_s = measured.root().at(kCpuSeconds).number(0, kMaxCpuSeconds);
  measured.require_known();
  return watch.others_share(std::max(child.cpu_s, ranks_s));
}

/// A model with almost no work, so that only launches and the host's time remain.
Workload tiny_workload(const CardRequest& request, const MachineLoad& load, std::int64_t depth) {
  const bool is_single = load.ranks == 1 && (load.threads != 1 || find_on_path("mpirun").empty());
  Workload workload{{.ranks = load.ranks, .on_gpu = request.on_gpu}};
  TrainConfig& config = workload.config;
  if (is_single) config.parallel.scheme = SchemeKind::kSingle;
  config.model.dim = 1;
  config.model.depth = depth;
  config.data.batch_size = load.ranks;
  config.training.steps = request.quick ? 100 : 400;
  config.device.device = request.on_gpu ? "cuda" : "cpu";
  if (load.threads > 0) config.device.threads = load.threads;
  return workload;
}

void measure_host(const CardRequest& request, MachineCard& card, MachineLoad& load) {
  constexpr int kHostStarts = 3;  // two ranks are in step, or out of it, for all of a start
  const auto step_s = [&](std::int64_t depth) {
    const Case what{.key = "tiny", .workload = tiny_workload(request, load, depth)};
    std::vector<Start> starts;
    for (int i = 0; i < (request.quick ? 1 : kHostStarts); ++i) {
      starts.push_back(run_workload(what, request.programs, request.scratch));
    }
    return Measurement(what, std::move(starts)).step_s().median;
  };
  const auto nodes = [&](std::int64_t depth) {
    return WorkloadPrograms(tiny_workload(request, load, depth)).step().size();
  };
  constexpr std::int64_t kShallow = 2, kDeep = 22;
  const double shallow_s = step_s(kShallow);
  load.launch_s = std::max(0.0, step_s(kDeep) - shallow_s) / (nodes(kDeep) - nodes(kShallow));
  MachineCard only = card;
  only.loads = {load};
  only.loads.front().host_s = 0;
  const double rest_s = predicted_run(tiny_workload(request, load, kShallow), only).step_s;
  load.host_s = std::max(0.0, shallow_s - rest_s);
}

/// A load as it is now; again, up to twice, if other programs disturb it or the hypervisor moves
/// the cores meanwhile, of which the attempt that was disturbed least counts.
MachineLoad measured_load(const CardRequest& request, const MachineLoad& load,
                          double& others_share) {
  constexpr int kAttempts = 3;
  struct Attempt {
    MachineLoad load{};
    bool moved = true;
    double others_share = 1;
  } best;
  const auto order = [](const Attempt& attempt) {
    return std::pair(attempt.moved, attempt.others_share);
  };
  for (int i = 0; i < (request.quick ? 1 : kAttempts); ++i) {
    Attempt attempt{.load = load, .moved = false};
    const double before_s = core_distance_s();
    attempt.others_share = measure_rates(request, attempt.load);
    if (load.ranks * load.threads > 1) {
      attempt.load.core_distance_s = core_distance_s();
      attempt.moved = !same_core_distance(before_s, attempt.load.core_distance_s);
    }
    if (i == 0 || order(attempt) < order(best)) best = std::move(attempt);
    if (!best.moved && best.others_share <= kDisturbingShare) break;
  }
  others_share = std::max(others_share, best.others_share);
  return best.load;
}

/// Whose figures are the medians of those of loads that have the same sizes, but for exchanges over
/// a slow cable.
MachineLoad median_of(const std::vector<MachineLoad>& loads) {
  MachineLoad all = loads.front();
  const auto median_in = [&](const auto& figure_of) {
    std::vector<double> figures;
    for (const MachineLoad& load : loads) figures.push_back(figure_of(load));
    return median(figures);
  };
  for (std::size_t i = 0; i < all.rates.size(); ++i) {
    all.rates[i].rate = median_in([&](const MachineLoad& load) { return load.rates[i].rate; });
  }
  for (std::size_t i = 0; i < all.wakes.size(); ++i) {
    all.wakes[i].first = median_in([&](const MachineLoad& load) { return load.wakes[i].first; });
    all.wakes[i].second = median_in([&](const MachineLoad& load) { return load.wakes[i].second; });
  }
  for (const ExchangeKind kind : kValuesOf<ExchangeKind>) {
    const auto sizes = [&](const MachineLoad& load) { return load.exchanges[kind].size(); };
    all.exchanges[kind].resize(sizes(*std::ranges::min_element(loads, {}, sizes)));
    for (std::size_t i = 0; i < all.exchanges[kind].size(); ++i) {
      all.exchanges[kind][i].second =
          median_in([&](const MachineLoad& load) { return load.exchanges[kind][i].second; });
    }
  }
  for (double MachineLoad::*figure :
       {&MachineLoad::launch_s, &MachineLoad::host_s, &MachineLoad::wake_s,
        &MachineLoad::contention, &MachineLoad::core_distance_s}) {
    all.*figure = median_in([&](const MachineLoad& load) { return load.*figure; });
  }
  return all;
}

/// By ranks, threads, as loads_of() has them, and arrangement of the cores, that of most first.
std::vector<std::vector<MachineLoad>> alike_loads(const std::vector<MachineLoad>& loads) {
  std::vector<std::vector<MachineLoad>> groups;
  for (const MachineLoad& load : loads) {
    auto group = std::ranges::find_if(groups, [&](const std::vector<MachineLoad>& others) {
      const MachineLoad& other = others.front();
      return other.ranks == load.ranks && other.threads == load.threads &&
             same_core_distance(other.core_distance_s, load.core_distance_s);
    });
    if (group == groups.end()) group = groups.insert(group, std::vector<MachineLoad>{});
    group->push_back(load);
  }
  std::ranges::stable_sort(groups, {}, [](const std::vector<MachineLoad>& group) {
    return std::tuple(group.front().ranks, -group.front().threads, -std::ssize(group));
  });
  return groups;
}

/// Fills in the figures that cards without loads have too: from large products and copies, at the
/// load with the most threads.
void summarize(MachineCard& card) {
  const MachineLoad& first = card.loads.front();
  card.flops_per_s = fastest_product(first);
  for (const OpRate& rate : first.rates) {
    // The largest copy, which fits in no cache.
    if (rate.op == "copy") card.memory_bytes_per_s = rate.rate;
  }
  card.launch_s = first.launch_s;
  card.host_s = first.host_s;
  ExchangeTables& tables = card.node.tables[ExchangeKind::kAllReduce];
  tables.clear();
  for (const MachineLoad& load : card.loads) {
    const SecondsByBytes& sums = load.exchanges[ExchangeKind::kAllReduce];
    const bool is_known =
        std::ranges::find(tables, load.ranks, &ExchangeTable::ranks) != tables.end();
    if (sums.empty() || is_known) continue;  // of another arrangement of the cores
    tables.push_back({load.ranks, sums});
    card.node.latency_s = sums.front().second;
  }
}

}  // namespace

MachineCard in_arrangement(MachineCard card, double core_distance_s) {
  const auto fits = [&](const MachineLoad& load) {
    return same_core_distance(load.core_distance_s, core_distance_s);
  };
  const auto is_replaced = [&, loads = card.loads](const MachineLoad& load) {
    return !fits(load) && std::ranges::any_of(loads, [&](const MachineLoad& other) {
      return other.ranks == load.ranks && other.threads == load.threads && fits(other);
    });
  };
  std::erase_if(card.loads, is_replaced);
  return card;
}

MachineCard measure_once(const CardRequest& request) {
  const Machine& machine = request.machine;
  const int units = request.on_gpu ? machine.gpus : machine.cores;
  MachineCard card{.name = fmt::format("this machine, {} {}",
                                       request.on_gpu ? machine.gpu : machine.processor,
                                       request.on_gpu ? fmt::format("x {}", units)
                                                      : "with " + counted(units, "core"))};
  card.on_gpu = request.on_gpu;
  card.node_ranks = units;
  card.device_bytes =
      request.on_gpu ? make_device({.device = "cuda:0"})->info().total_bytes : machine.memory_bytes;
  std::filesystem::create_directories(request.scratch);
  for (const MachineLoad& load : loads_of(request)) {
    request.on_progress(text_of(load));
    MachineLoad measured = measured_load(request, load, card.others_share);
    measure_host(request, card, measured);
    card.loads.push_back(std::move(measured));
  }
  std::filesystem::remove_all(request.scratch);
  summarize(card);
  return card;
}

MachineCard median_card(std::vector<MachineCard> passes) {
  BARESTEP_REQUIRE(!passes.empty(), "a card needs a pass");
  const double least =
      std::ranges::min_element(passes, {}, &MachineCard::others_share)->others_share;
  std::erase_if(passes, [&](const MachineCard& pass) {
    return pass.others_share > std::max(least, kDisturbingShare);
  });
  MachineCard card = passes.front();
  std::vector<MachineLoad> loads;
  for (const MachineCard& pass : passes) {
    card.others_share = std::max(card.others_share, pass.others_share);
    loads.insert(loads.end(), pass.loads.begin(), pass.loads.end());
  }
  card.loads.clear();
  for (const std::vector<MachineLoad>& alike : alike_loads(loads)) {
    card.loads.push_back(median_of(alike));
  }
  summarize(card);
  return card;
}

MachineCard measure_card(const CardRequest& request) {
  std::vector<MachineCard> passes;
  for (int i = 0; i < passes_of(request.quick, request.on_gpu); ++i)
    passes.push_back(measure_once(request));
  return median_card(std::move(passes));
}

void write_rank_rates(const MeasuringRank& rank, bool quick, const std::filesystem::path& file) {
  const MachineLoad measured = measure_rank(rank, quick);
  const double cpu_s = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  auto all = nlohmann::json::parse(measured_json(measured));
  all[kCpuSeconds] = mean_of_ranks(rank.ranks, cpu_s) * rank.ranks.size();
  if (rank.ranks.rank() == 0) replace_file(file, all.dump() + "\n");
}

}  // namespace barestep
