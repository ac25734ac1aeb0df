#include "lab/rank_rates.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "core/addresses.h"
#include "core/clock.h"
#include "lab/samples.h"

namespace barestep {
namespace {

constexpr std::int64_t kMemoryBytes = std::int64_t{128} << 20;
constexpr std::int64_t kNumbers = kMemoryBytes / 4;
constexpr int kBatches = 5;  // of which the median counts
constexpr int kLayers = 6;
constexpr std::int64_t kMostReducedBytes = std::int64_t{32} << 20;

/// Tensors in the measured memory, one behind the other, from the beginning again at its end.
class Tensors {
 public:
  explicit Tensors(std::int64_t first) : next_(first) {}

  Tensor take(std::int64_t rows, std::int64_t cols) {
    constexpr std::int64_t kAligned = 16;  // numbers of 64 bytes
    if (next_ + rows * cols > kNumbers) next_ = 0;
    const Tensor tensor{0, 4 * next_, rows, cols};
    next_ += (rows * cols + kAligned - 1) / kAligned * kAligned;
    return tensor;
  }

 private:
  std::int64_t next_;
};

/// Device memory for the time of the measurement, filled with zeros, and a stream.
class Bench {
 public:
  Bench(Communicator& ranks, Communicator& transport, Device& device, bool quick)
      : ranks_(ranks),
        transport_(transport),
        device_(device),
        batch_s_(quick ? 0.004 : 0.012),
        memory_(device.allocate(kMemoryBytes, MemoryKind::kDevice)),
        addresses_(std::vector<std::byte*>{memory_}),
        workspace_bytes_(workspace_bytes(device.kind())),
        workspace_(workspace_bytes_ > 0 ? device.allocate(workspace_bytes_, MemoryKind::kDevice)
                                        : nullptr),
        stream_(device.new_stream("rates")) {
    if (workspace_ != nullptr) {
      stream_->set_workspace({workspace_, static_cast<std::size_t>(workspace_bytes_)});
    }
    const DeviceOp zeros = Fill{.out = {0, 0, 1, kNumbers}};
    device_.prepare(zeros);
    device_.run(zeros, addresses_, *stream_, {});
    stream_->synchronize();
  }
  ~Bench() {
    stream_.reset();
    if (workspace_ != nullptr) device_.release(workspace_, MemoryKind::kDevice);
    device_.release(memory_, MemoryKind::kDevice);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  /// Seconds of one op while the same goes on in all ranks: median of some batches.
  double seconds_of(const std::vector<DeviceOp>& ops) {
    for (const DeviceOp& op : ops) device_.prepare(op);
    run(ops, 1);
    const double once_s = run(ops, 2) / 2;
    const auto times = static_cast<std::size_t>(std::clamp(batch_s_ / once_s, 1.0, 1e4));
    ranks_.barrier();
    // All go on for as long as any other, so that none measures a machine that is idle already.
    const double end_s = now_s() + kBatches * batch_s_;
    std::vector<double> batches;
    while (batches.size() < kBatches || now_s() < end_s) {
      batches.push_back(run(ops, times) / static_cast<double>(times));
    }
    return median(batches);
  }

  /// Seconds of one collective, the mean of all ranks.
  double seconds_of(const Collective& collective) {
    transport_.prepare(collective);
    const double once_s = mean_of_ranks(run(collective, 3) / 3);
    const int times = static_cast<int>(std::clamp(2 * batch_s_ / once_s, 1.0, 1000.0));
    std::vector<double> batches;
    for (int i = 0; i < kBatches; ++i) batches.push_back(run(collective, times) / times);
    return mean_of_ranks(median(batches));
  }

 private:
  /// `count` of them, in turn from where the last call ended.
  double run(const std::vector<DeviceOp>& ops, std::size_t count) {
    const double begin_s = now_s();
    for (std::size_t i = 0; i < count; ++i) {
      device_.run(ops[next_++ % ops.size()], addresses_, *stream_, {});
    }
    stream_->synchronize();
    return now_s() - begin_s;
  }

  double run(const Collective& collective, int count) {
    const std::array<Stream*, 1> streams{stream_.get()};
    ranks_.barrier();
    const double begin_s = now_s();
    for (int i = 0; i < count; ++i) transport_.run(collective, addresses_, streams, {});
    stream_->synchronize();
    return now_s() - begin_s;
  }

  double mean_of_ranks(double mine) {
    std::vector<double> all(static_cast<std::size_t>(ranks_.size()));
    ranks_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    double sum = 0;
    for (const double each : all) sum += each;
    return sum / static_cast<double>(all.size());
  }

  Communicator& ranks_;
  Communicator& transport_;
  Device& device_;
  double batch_s_;
  std::byte* memory_;
  Addresses addresses_;
  std::int64_t workspace_bytes_;
  std::byte* workspace_;
  std::unique_ptr<Stream> stream_;
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
              .relu = true};
}

DeviceOp input_gradient(Tensors& weights, Tensors& activations, std::int64_t rows,
                        std::int64_t width) {
  return Gemm{.c = activations.take(rows, width),
              .a = activations.take(rows, width),
              .b = weights.take(width, width)};
}

DeviceOp weight_gradient(Tensors& weights, Tensors& activations, std::int64_t rows,
                         std::int64_t width) {
  return Gemm{.c = weights.take(width, width),
              .a = activations.take(rows, width),
              .b = activations.take(rows, width),
              .transpose_a = true};
}

DeviceOp fused_update(Tensors& weights, Tensors& activations, std::int64_t rows,
                      std::int64_t width) {
  return LinearAdam{.weight = weights.take(width, width),
                    .weight_moments1 = weights.take(width, width),
                    .weight_moments2 = weights.take(width, width),
                    .bias = weights.take(1, width),
                    .bias_moments1 = weights.take(1, width),
                    .bias_moments2 = weights.take(1, width),
                    .grad_y = activations.take(rows, width),
                    .x = activations.take(rows, width),
                    .scalars = activations.take(1, 2)};
}

/// Weights behind what four activations take, in as many layers as fit.
std::vector<DeviceOp> products_of(MakeOp make, std::int64_t rows, std::int64_t width, int tensors) {
  const std::int64_t activations_end = 4 * (rows + 1) * width;
  const std::int64_t layer = tensors * (width + 1) * (width + 16);
  const std::int64_t layers =
      std::clamp<std::int64_t>((kNumbers - activations_end) / layer, 1, 4 * kLayers / tensors);
  Tensors weights(activations_end);
  std::vector<DeviceOp> ops;
  for (std::int64_t i = 0; i < layers; ++i) {
    Tensors activations(0);
    ops.push_back(make(weights, activations, rows, width));
  }
  return ops;
}

void measure_products(Bench& bench, const Device& device, bool quick, std::vector<OpRate>& rates) {
  const bool on_gpu = device.kind() == DeviceKind::kCuda;
  std::vector<std::int64_t> batches = {16, 64, 256};
  if (!quick) batches = {8, 16, 32, 64, 128, 256, 512};
  std::vector<std::int64_t> widths = {256, 512};
  if (!quick) widths = {1024, 2048};
  if (on_gpu) widths = {1024, 4096};
  for (const std::int64_t width : widths) {
    for (const std::int64_t rows : batches) {
      const auto measure = [&](MakeOp make, int tensors) {
        const std::vector<DeviceOp> ops = products_of(make, rows, width, tensors);
        OpSize size = size_of(ops.front());
        rates.push_back(
            {std::move(size.op), size.rows, size.width, size.work / bench.seconds_of(ops)});
      };
      measure(forward_product, 1);
      measure(input_gradient, 1);
      measure(weight_gradient, 1);
      measure(fused_update, 3);
    }
  }
}

/// Ops that are bound by memory, by how many numbers they go through.
std::vector<DeviceOp> ops_over(std::int64_t count) {
  constexpr std::int64_t kCols = 256;
  const std::int64_t rows = std::max<std::int64_t>(1, count / kCols);
  Tensors memory(0);
  const auto flat = [&] { return memory.take(1, count); };
  const auto matrix = [&] { return memory.take(rows, std::min(count, kCols)); };
  const auto row = [&](std::int64_t cols) { return memory.take(1, cols); };
  std::vector<DeviceOp> ops;
  ops.push_back(Adam{.weights = flat(),
                     .grads = flat(),
                     .moments1 = flat(),
                     .moments2 = flat(),
                     .scalars = row(2)});
  memory = Tensors(0);
  ops.push_back(Copy{.to = flat(), .from = flat()});
  memory = Tensors(0);
  ops.push_back(BiasRelu{.values = matrix(), .bias = row(std::min(count, kCols))});
  memory = Tensors(0);
  ops.push_back(ReluGrad{.grad = matrix(), .output = matrix()});
  memory = Tensors(0);
  ops.push_back(SumRows{.out = row(std::min(count, kCols)), .in = matrix()});
  memory = Tensors(0);
  ops.push_back(MseLoss{
      .loss = row(1), .grad = matrix(), .output = matrix(), .target = matrix(), .count = count});
  return ops;
}

void measure_other_ops(Bench& bench, bool quick, std::vector<OpRate>& rates) {
  const std::int64_t factor = quick ? 16 : 4;
  for (std::int64_t count = 1 << 12; count <= kNumbers / 4; count *= factor) {
    for (const DeviceOp& op : ops_over(count)) {
      OpSize size = size_of(op);
      // So much of a batch no model has.
      const bool is_state = size.op == "adam" || size.op == "copy";
      if (!is_state && count > 1 << 21) continue;
      rates.push_back(
          {std::move(size.op), size.rows, size.width, size.work / bench.seconds_of({op})});
    }
  }
}

}  // namespace

RankRates measure_rank(Communicator& ranks, Communicator& transport, Device& device, bool quick) {
  Bench bench(ranks, transport, device, quick);
  RankRates measured;
  measure_products(bench, device, quick, measured.rates);
  measure_other_ops(bench, quick, measured.rates);
  if (ranks.size() == 1) return measured;
  // They keep their addresses, by which communicators know them.
  std::vector<std::unique_ptr<Collective>> collectives;
  for (std::int64_t bytes = 4; bytes <= kMostReducedBytes; bytes *= quick ? 8 : 4) {
    collectives.push_back(std::make_unique<Collective>(
        AllReduce{.tensors = {Tensor{0, 0, 1, bytes / 4}}, .scale = 0.5F}));
    measured.all_reduce.emplace_back(static_cast<double>(bytes),
                                     bench.seconds_of(*collectives.back()));
  }
  return measured;
}

}  // namespace barestep
