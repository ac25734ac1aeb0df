// Times of a layer's weight gradient and Adam step, one after the other and as one op, and of the
// parts of both.

#include "kernels/cpu/linear_adam.h"
#include "kernels/cpu/ops.h"
#include "measure.h"

namespace barestep::bench {
namespace {

constexpr std::int64_t kUpdateBatch = 64;

enum Part { kProduct, kProductByTiles, kAdam, kSeparate, kFused };
constexpr const char* kNames[] = {"product", "product by tiles, left in the cache", "adam",
                                  "product, then adam", "fused"};

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

/// Only the products of the fused op's tiles.
void multiply_tiles(const Layer& layer, const Addresses& addresses, const Product& product,
                    ThreadPool& pool) {
  const std::int64_t dim = layer.fused.weight.rows;
  const std::int64_t across = (dim + kLinearAdamTileCols - 1) / kLinearAdamTileCols;
  const std::int64_t down = (dim + kLinearAdamTileRows - 1) / kLinearAdamTileRows;
  pool.run(down * across, [&](std::int64_t task, int) {
    alignas(64) float tile[kLinearAdamTileRows * kLinearAdamTileCols];
    const std::int64_t row = task / across * kLinearAdamTileRows;
    const std::int64_t col = task % across * kLinearAdamTileCols;
    const std::int64_t cols = std::min(kLinearAdamTileCols, dim - col);
    const bool done = product.multiply({.transpose_a = true,
                                        .transpose_b = false,
                                        .m = std::min(kLinearAdamTileRows, dim - row),
                                        .n = cols,
                                        .k = kUpdateBatch,
                                        .a = addresses.at(layer.fused.grad_y) + row,
                                        .stride_a = dim,
                                        .b = addresses.at(layer.fused.x) + col,
                                        .stride_b = dim,
                                        .beta = 0,
                                        .c = tile,
                                        .stride_c = cols});
    benchmark::DoNotOptimize(done);
    benchmark::DoNotOptimize(tile[0]);
  });
}

void run_part(Part part, const Layer& layer, const Addresses& addresses, Product& product,
              ThreadPool& pool) {
  CpuOps ops(pool, product);
  if (part == kProduct || part == kSeparate) ops.run(layer.product, addresses);
  if (part == kProductByTiles) multiply_tiles(layer, addresses, product, pool);
  if (part == kAdam || part == kSeparate) ops.run(layer.adam, addresses);
  if (part == kFused) ops.run(layer.fused, addresses);
}

void weight_update(benchmark::State& state) {
  const auto part = static_cast<Part>(state.range(0));
  const std::int64_t dim = state.range(1);
  const std::int64_t layers = state.range(2);
  ThreadPool pool(setting().threads);
  const auto product = make_product(setting().gemm);
  DeviceMemory memory(layers * (4 * dim * dim + 4 * dim) + 2 * kUpdateBatch * dim + 1024);
  const Tensor grad_y = memory.take(kUpdateBatch, dim);
  const Tensor x = memory.take(kUpdateBatch, dim);
  const Tensor scalars = memory.take(1, 2);
  std::vector<Layer> all;
  for (std::int64_t i = 0; i < layers; ++i) {
    all.push_back(take_layer(memory, dim, grad_y, x, scalars));
    product->prepare(all.back().product, pool);
    run_part(kSeparate, all.back(), memory.addresses(), *product, pool);
  }
  std::size_t next = 0;
  const double seconds = time_iterations(
      state, [&] { run_part(part, all[next++ % all.size()], memory.addresses(), *product, pool); });
  state.counters["ns/param"] = 1e9 * seconds / static_cast<double>(dim * dim);
  state.SetLabel(kNames[part]);
}
// The layers of the two models used in comparisons of whole steps.
BENCHMARK(weight_update)
    ->ArgsProduct({{kProduct, kProductByTiles, kAdam, kSeparate, kFused}, {1024}, {2}})
    ->ArgsProduct({{kProduct, kProductByTiles, kAdam, kSeparate, kFused}, {2048}, {4}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace barestep::bench
