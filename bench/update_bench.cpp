// Times of a layer's weight gradient and Adam step, one after the other and as one op, and of the
// parts of both.

#include "kernels/cpu/linear_adam.h"
#include "kernels/cpu/ops.h"
#include "measure.h"

namespace barestep::bench {
namespace {

constexpr std::int64_t kUpdateBatch = 64;

enum Part { kProduct, kAdam, kSeparate, kFused };
constexpr const char* kNames[] = {"product", "adam", "product, then adam", "fused"};

/// One layer of a model: its weight, moments and, if it is stored, its gradient.
struct Layer {
  LinearAdam fused;
  Gemm product;
  OptimizerUpdate adam;
};

Layer take_layer(DeviceMemory& memory, std::int64_t dim, const Tensor& grad_y, const Tensor& x,
                 const Tensor& scalars) {
  const LinearAdam fused{.weight = memory.take(dim, dim),
                         .weight_moments1 = memory.take(dim, dim),
                         .weight_moments2 = memory.take(dim, dim),
                         .bias = memory.take(1, dim),
                         .bias_moments1 = memory.take(1, dim),
                         .bias_moments2 = memory.take(1, dim),
                         .grad_y = grad_y,
                         .x = x,
                         .scalars = scalars};
  const auto flat = [](Tensor tensor) {
    return Tensor{tensor.buffer, tensor.offset_bytes, 1, tensor.size()};
  };
  Gemm product = weight_gradient_of(fused);
  product.c = memory.take(dim, dim);
  const OptimizerUpdate adam{.weights = flat(fused.weight),
                             .grads = flat(product.c),
                             .state = {flat(fused.weight_moments1), flat(fused.weight_moments2)},
                             .scalars = scalars};
  return {fused, product, adam};
}

void run_part(Part part, const Layer& layer, const Addresses& addresses, CpuOps& ops) {
  if (part == kProduct || part == kSeparate) ops.run(layer.product, addresses);
  if (part == kAdam || part == kSeparate) ops.run(layer.adam, addresses);
  if (part == kFused) ops.run(layer.fused, addresses);
}

void weight_update(benchmark::State& state) {
  const auto part = static_cast<Part>(state.range(0));
  const std::int64_t dim = state.range(1);
  const std::int64_t layers = state.range(2);
  ThreadPool pool(setting().threads);
  const auto product = make_product(setting().gemm);
  CpuOps ops(pool, *product);
  DeviceMemory memory(layers * (4 * dim * dim + 4 * dim) + 2 * kUpdateBatch * dim + 1024);
  const Tensor grad_y = memory.take(kUpdateBatch, dim);
  const Tensor x = memory.take(kUpdateBatch, dim);
  const Tensor scalars = memory.take(1, 2);
  std::vector<Layer> all;
  for (std::int64_t i = 0; i < layers; ++i) {
    all.push_back(take_layer(memory, dim, grad_y, x, scalars));
    ops.prepare(all.back().product);
    ops.prepare(all.back().fused);
    run_part(kSeparate, all.back(), memory.addresses(), ops);
  }
  std::size_t next = 0;
  const double seconds = time_iterations(
      state, [&] { run_part(part, all[next++ % all.size()], memory.addresses(), ops); });
  state.counters["ns/param"] = 1e9 * seconds / static_cast<double>(dim * dim);
  state.SetLabel(kNames[part]);
}
// The layers of the two models used in comparisons of whole steps.
BENCHMARK(weight_update)
    ->ArgsProduct({{kProduct, kAdam, kSeparate, kFused}, {1024}, {2}})
    ->ArgsProduct({{kProduct, kAdam, kSeparate, kFused}, {2048}, {4}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace barestep::bench
