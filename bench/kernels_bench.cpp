// Single ops with the shapes of the baseline model, each beside what the machine can do at best.
#include <string>

#include "core/random.h"
#include "kernels/cpu/ops.h"
#include "measure.h"
#include "support/layers.h"
#include "train/weights.h"

namespace barestep::bench {
namespace {

constexpr std::int64_t kBatch = 64;

/// A thread pool, a product, and the ops that run on them.
struct Machine {
  ThreadPool pool{setting().threads};
  std::unique_ptr<Product> product = make_product(setting().gemm);
  CpuOps ops{pool, *product};
};

void adam(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  Machine machine;
  DeviceMemory memory(4 * n + 128);
  const OptimizerUpdate op{.weights = memory.take(1, n),
                           .grads = memory.take(1, n),
                           .state = {memory.take(1, n), memory.take(1, n)},
                           .scalars = memory.take(1, 2)};
  // In the same memory and at the same time, so it has the same conditions as Adam.
  const double best = in_place_bandwidth(machine.pool, memory.floats(), 4 * n, 7);
  const auto run = [&] { machine.ops.run(op, memory.addresses()); };
  run();
  const double seconds = time_iterations(state, run);
  const double bytes = static_cast<double>(cost_of(DeviceOp{op}).bytes);
  state.counters["ns/param"] = 1e9 * seconds / static_cast<double>(n);
  state.counters["GB/s"] = bytes / seconds / 1e9;
  state.counters["best GB/s"] = best / 1e9;
  state.counters["% of best"] = 100 * bytes / seconds / best;
}
BENCHMARK(adam)->Arg(2'099'200)->Arg(67'141'632)->UseManualTime()->Unit(benchmark::kMillisecond);

void product(benchmark::State& state) {
  const auto direction = static_cast<Direction>(state.range(0));
  const std::int64_t dim = state.range(1);
  // Enough weights that each has left the cache before it is used again.
  const std::int64_t weights =
      std::max<std::int64_t>(2, (std::int64_t{64} << 20) / (4 * dim * dim));
  Machine machine;
  DeviceMemory memory(weights * dim * dim + 2 * kBatch * dim + 2 * dim);
  const Tensor x = memory.take(kBatch, dim);
  const Tensor y = memory.take(kBatch, dim);
  const Tensor bias = memory.take(1, dim);
  std::vector<Gemm> ops;
  for (std::int64_t i = 0; i < weights; ++i) {
    ops.push_back(linear_product(direction, x, y, memory.take(dim, dim), bias));
    machine.product->prepare(ops.back(), machine.pool);
  }
  const double peak = product_peak(machine.pool, *machine.product);
  std::size_t next = 0;
  const double seconds = time_iterations(state, [&] {
    machine.product->run(ops[next++ % ops.size()], memory.addresses(), machine.pool);
  });
  const double rate = 2.0 * kBatch * static_cast<double>(dim * dim) / seconds;
  state.counters["GFLOP/s"] = rate / 1e9;
  state.counters["peak GFLOP/s"] = peak / 1e9;
  state.counters["% of peak"] = 100 * rate / peak;
  state.SetLabel(direction == kForward         ? "forward"
                 : direction == kInputGradient ? "input gradient"
                                               : "weight gradient");
}
BENCHMARK(product)
    ->ArgsProduct({{kForward, kInputGradient, kWeightGradient}, {1024, 2048}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

void randn(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  DeviceMemory memory(n);
  TorchGenerator generator(0);
  const double seconds = time_iterations(state, [&] {
    generator.randn({memory.floats(), static_cast<std::size_t>(n)});
  });
  state.counters["ns/number"] = 1e9 * seconds / static_cast<double>(n);
}
BENCHMARK(randn)->Arg(64 * 1024)->Arg(64 * 8192)->UseManualTime()->Unit(benchmark::kMicrosecond);

/// 402,702,336 parameters: the baseline model, 8192 wide and 6 layers deep.
void initial_weights_of_the_practical(benchmark::State& state) {
  const Parameters parameters = parameters_of({.widths = std::vector<std::int64_t>(7, 8192)});
  const double seconds = time_iterations(state, [&] {
    TorchGenerator generator(0);
    FlatWeights weights = parameters.initial_values(generator);
    benchmark::DoNotOptimize(weights.data());
  });
  state.counters["ns/param"] = 1e9 * seconds / static_cast<double>(parameters.size());
}
BENCHMARK(initial_weights_of_the_practical)
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace barestep::bench
