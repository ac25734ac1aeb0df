// Kernels that treat every number by itself: bias, ReLU, fill.
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

}  // namespace barestep
