// Single ops with the shapes of the baseline model, each beside what the machine can do at best.

#include "core/random.h"
#include "kernels/cpu/ops.h"
#include "measure.h"
#include "model/model.h"

namespace barestep::bench {
namespace {

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

/// A layer's product: direction, rows of the batch, width. Products of our own and oneDNN's in
/// turn; the time of an iteration is that of ours.
void product(benchmark::State& state) {
  const auto direction = static_cast<Direction>(state.range(0));
  const std::int64_t rows = state.range(1), dim = state.range(2);
  // Enough weights that each has left the cache before it is used again.
  const std::int64_t weights =
      std::max<std::int64_t>(2, (std::int64_t{64} << 20) / (4 * dim * dim));
  ThreadPool pool(setting().threads);
  std::vector<std::unique_ptr<Product>> products;
  products.push_back(make_own_product());
  if (auto library = make_onednn_product()) products.push_back(std::move(library));
  DeviceMemory memory(weights * dim * dim + 2 * rows * dim + 2 * dim);
  const Tensor x = memory.take(rows, dim), y = memory.take(rows, dim), bias = memory.take(1, dim);
  std::vector<Gemm> ops;
  for (std::int64_t i = 0; i < weights; ++i) {
    ops.push_back(linear_product(direction, x, y, memory.take(dim, dim), bias));
    for (const auto& each : products) each->prepare(ops.back(), pool);
  }
  const double peak = arithmetic_peak(pool);
  std::vector<std::vector<double>> times(products.size());
  std::size_t next = 0;
  for ([[maybe_unused]] const auto iteration : state) {
    for (std::size_t i = 0; i < products.size(); ++i) {
      times[i].push_back(seconds_of(
          [&] { products[i]->run(ops[next++ % ops.size()], memory.addresses(), pool); }));
    }
    state.SetIterationTime(times.front().back());
  }
  const double seconds = median(times.front());
  const double rate = 2.0 * static_cast<double>(rows * dim * dim) / seconds;
  state.counters["GFLOP/s"] = rate / 1e9;
  state.counters["% of fma peak"] = 100 * rate / peak;
  if (products.size() > 1) state.counters["oneDNN time"] = median(times.back()) / seconds;
  state.SetLabel(direction == kForward         ? "forward"
                 : direction == kInputGradient ? "input gradient"
                                               : "weight gradient");
}
BENCHMARK(product)
    ->ArgsProduct({{kForward, kInputGradient, kWeightGradient}, {1, 20, 64}, {256, 1024, 2048}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

/// Flash attention with heads 64 wide: backward or not, batch, heads, length, causal or not.
void attention(benchmark::State& state) {
  constexpr std::int64_t kWidth = 64;
  const bool is_backward = state.range(0) == 1;
  const AttentionShape shape{
      .heads = state.range(2), .length = state.range(3), .causal = state.range(4) == 1};
  const std::int64_t rows = state.range(1) * shape.length, cols = shape.heads * kWidth;
  Machine machine;
  DeviceMemory memory(rows * (8 * cols + shape.heads) + 256);
  const Tensor qkv = memory.take(rows, 3 * cols), grad_out = memory.take(rows, cols);
  TorchGenerator(0).randn({memory.floats(), static_cast<std::size_t>(4 * rows * cols)});
  const Attention forward{.out = memory.take(rows, cols),
                          .kept = memory.take(rows, shape.heads),
                          .qkv = qkv,
                          .shape = shape};
  const AttentionGrad backward{.grad_qkv = memory.take(rows, 3 * cols),
                               .qkv = qkv,
                               .out = forward.out,
                               .grad_out = grad_out,
                               .kept = forward.kept,
                               .shape = shape};
  machine.ops.run(forward, memory.addresses());
  const double seconds = time_iterations(state, [&] {
    if (is_backward) return machine.ops.run(backward, memory.addresses());
    machine.ops.run(forward, memory.addresses());
  });
  const double pairs = static_cast<double>(state.range(1) * shape.heads * shape.pairs());
  state.counters["median ms"] = 1e3 * seconds;
  state.counters["GFLOP/s"] = (is_backward ? 10 : 4) * pairs * kWidth / seconds / 1e9;
}
void attention_shapes(benchmark::internal::Benchmark* each) {
  for (const int backward : {0, 1}) {
    for (const int causal : {0, 1}) {
      each->Args({backward, 8, 8, 128, causal})
          ->Args({backward, 4, 8, 512, causal})
          ->Args({backward, 1, 8, 2048, causal});
    }
  }
}
BENCHMARK(attention)->Apply(attention_shapes)->UseManualTime()->Unit(benchmark::kMillisecond);

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
