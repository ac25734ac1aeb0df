// Kernels that treat every number by itself: bias, ReLU, fill, and Adam.
#pragma once

#include "kernels/cuda_grid.cuh"
#include "kernels/loop_ops.h"

namespace barestep {

/// Calls element(i) for i in [0, n).
template <class Element>
__global__ void __launch_bounds__(kBlockThreads) each_element(std::int64_t n, Element element) {
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) element(i);
}

struct FillElement {
  float* out;
  float value;

  BARESTEP_HD void operator()(std::int64_t i) const { out[i] = value; }
};

/// A block's share of a matrix in bias_relu and sum_rows: a warp reads neighbouring columns.
constexpr int kTileCols = kWarpThreads;
constexpr int kTileRows = kBlockWarps;

/// Every thread stays in its column, whose number needs no division. Grid: column tiles by row
/// tiles.
static __global__ void __launch_bounds__(kBlockThreads)
    bias_relu(float* values, std::int64_t rows, std::int64_t cols, BiasReluElement element) {
  const std::int64_t col = std::int64_t{blockIdx.x} * kTileCols + threadIdx.x;
  if (col >= cols) return;
  const std::int64_t step = std::int64_t{gridDim.y} * kTileRows;
  for (std::int64_t row = std::int64_t{blockIdx.y} * kTileRows + threadIdx.y; row < rows;
       row += step) {
    element(values + row * cols, col);
  }
}

/// Adam over flat buffers: `vectors` times four numbers by 16-byte accesses, what is left one by
/// one. Moments and gradients are not read again before the next step, so they leave the cache
/// first; weights may stay.
static __global__ void __launch_bounds__(kBlockThreads)
    adam(std::int64_t n, std::int64_t vectors, float* weights, const float* grads, float* moments1,
         float* moments2, const float* scalars, AdamConstants constants) {
  const float scale = scalars[0];
  const float root = scalars[1];
  auto* const weights4 = reinterpret_cast<float4*>(weights);
  const auto* const grads4 = reinterpret_cast<const float4*>(grads);
  auto* const moments1_4 = reinterpret_cast<float4*>(moments1);
  auto* const moments2_4 = reinterpret_cast<float4*>(moments2);
  for (std::int64_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const float4 g = __ldcs(grads4 + i);
    float4 m = __ldcs(moments1_4 + i);
    float4 v = __ldcs(moments2_4 + i);
    float4 w = weights4[i];
    adam_step(constants, scale, root, g.x, w.x, m.x, v.x);
    adam_step(constants, scale, root, g.y, w.y, m.y, v.y);
    adam_step(constants, scale, root, g.z, w.z, m.z, v.z);
    adam_step(constants, scale, root, g.w, w.w, m.w, v.w);
    weights4[i] = w;
    __stcs(moments1_4 + i, m);
    __stcs(moments2_4 + i, v);
  }
  // At most three where all is aligned: unrolling would cost every thread a division and registers.
#pragma unroll 1
  for (std::int64_t i = 4 * vectors + grid_thread(); i < n; i += grid_threads()) {
    adam_step(constants, scale, root, grads[i], weights[i], moments1[i], moments2[i]);
  }
}

}  // namespace barestep
