// Kernels that treat every number by itself: bias, activation, fill, the sum of one row and
// another.
#pragma once

#include "kernels/cuda/grid.cuh"
#include "kernels/formulas.h"
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

/// A block's share of a matrix in each_of_rows and sum_rows: a warp reads neighbouring columns.
constexpr int kTileCols = kWarpThreads;
constexpr int kTileRows = kBlockWarps;

/// Calls element(row, col) for all of them. Every thread stays in its column, whose number needs no
/// division. Grid: column tiles by row tiles.
template <class Element>
__global__ void __launch_bounds__(kBlockThreads)
    each_of_rows(std::int64_t rows, std::int64_t cols, Element element) {
  const std::int64_t col = std::int64_t{blockIdx.x} * kTileCols + threadIdx.x;
  if (col >= cols) return;
  const std::int64_t step = std::int64_t{gridDim.y} * kTileRows;
  for (std::int64_t row = std::int64_t{blockIdx.y} * kTileRows + threadIdx.y; row < rows;
       row += step) {
    element(row, col);
  }
}

/// out = row + beta * out; a null `row` is one of zeros. `vectors` times four numbers by 16-byte
/// accesses, what is left one by one. What sum_rows does for one row, by all threads. The numbers
/// of `row` are not read again, so they leave the cache first.
static __global__ void __launch_bounds__(kBlockThreads)
    add_row(std::int64_t n, std::int64_t vectors, float* out, const float* row, float beta) {
  auto* const out4 = reinterpret_cast<float4*>(out);
  const auto* const row4 = reinterpret_cast<const float4*>(row);
  for (std::int64_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const float4 add = row == nullptr ? float4{} : __ldcs(row4 + i);
    float4 sum = beta == 0.0F ? float4{} : out4[i];
    // A sum begins with a zero, which makes -0 of a row 0.
    sum.x = accumulate(0.0F + add.x, beta, sum.x);
    sum.y = accumulate(0.0F + add.y, beta, sum.y);
    sum.z = accumulate(0.0F + add.z, beta, sum.z);
    sum.w = accumulate(0.0F + add.w, beta, sum.w);
    out4[i] = sum;
  }
#pragma unroll 1
  for (std::int64_t i = 4 * vectors + grid_thread(); i < n; i += grid_threads()) {
    out[i] = accumulate(0.0F + (row == nullptr ? 0.0F : row[i]), beta, out[i]);
  }
}

}  // namespace barestep
