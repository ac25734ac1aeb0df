#include "kernels/cpu/linear_adam.h"

#include <algorithm>
#include <atomic>

#include "core/error.h"
#include "kernels/cpu/cascade_sum.h"
#include "kernels/cpu/sanitizer_ranges.h"
#include "kernels/loop_ops.h"

namespace barestep {
namespace {

/// Biases are summed as SumRows sums them.
static_assert(kLinearAdamTileRows % kSumColumns == 0);

/// An op with its addresses.
struct BoundUpdate {
  const LinearAdam& op;
  const Addresses& addresses;
  AdamConstants constants{op};
  AdamScalars scalars{constants, addresses.at(op.scalars),
                      op.clip ? addresses.at(*op.clip) : nullptr};

  /// False when the library failed.
  bool gradient(const Product& product, const Tile& tile, float* grads) const {
    const std::int64_t rows = op.x.rows;
    if (rows == 0) {
      std::fill_n(grads, tile.rows * tile.cols, 0.0F);
      return true;
    }
    const float* const grad_y = addresses.at(op.grad_y) + tile.row;
    const float* const x = addresses.at(op.x) + tile.col;
    announce_read(grad_y, rows, tile.rows, op.grad_y.cols);
    announce_read(x, rows, tile.cols, op.x.cols);
    return product.multiply({.transpose_a = true,
                             .transpose_b = false,
                             .m = tile.rows,
                             .n = tile.cols,
                             .k = rows,
                             .a = grad_y,
                             .stride_a = op.grad_y.cols,
                             .b = x,
                             .stride_b = op.x.cols,
                             .beta = 0,
                             .c = grads,
                             .stride_c = tile.cols});
  }

  void update_weights(const Tile& tile, const float* grads) const {
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      const std::int64_t first = (tile.row + row) * op.weight.cols + tile.col;
      const UpdateElement<AdamRule> element{
          addresses.at(op.weight) + first,
          grads + row * tile.cols,
          {{addresses.at(op.weight_moments1) + first, addresses.at(op.weight_moments2) + first}},
          {constants},
          scalars};
      for (std::int64_t col = 0; col < tile.cols; ++col) element(col);
    }
  }

  void update_biases(const Tile& tile) const {
    float* const bias = addresses.at(op.bias);
    float* const moments1 = addresses.at(op.bias_moments1);
    float* const moments2 = addresses.at(op.bias_moments2);
    sum_columns(addresses.at(op.grad_y), op.grad_y.rows, op.grad_y.cols, tile.row,
                tile.row + tile.rows, [&](std::int64_t i, float sum) {
                  adam_step(constants, scalars, sum, bias[i], moments1[i], moments2[i]);
                });
  }
};

}  // namespace

Gemm weight_gradient_of(const LinearAdam& op) {
  return {.c = op.weight, .a = op.grad_y, .b = op.x, .transpose_a = true};
}

void run_linear_adam(const LinearAdam& op, const Addresses& addresses, const Product& product,
                     ThreadPool& pool) {
  const BoundUpdate update{op, addresses};
  const std::int64_t down = (op.weight.rows + kLinearAdamTileRows - 1) / kLinearAdamTileRows;
  const std::int64_t across = (op.weight.cols + kLinearAdamTileCols - 1) / kLinearAdamTileCols;
  std::atomic<bool> failed{false};
  pool.run(down * across, [&](std::int64_t task, int) {
    const std::int64_t row = task / across * kLinearAdamTileRows;
    const std::int64_t col = task % across * kLinearAdamTileCols;
    const Tile tile{row, std::min(kLinearAdamTileRows, op.weight.rows - row), col,
                    std::min(kLinearAdamTileCols, op.weight.cols - col)};
    alignas(64) float grads[kLinearAdamTileRows * kLinearAdamTileCols];
    if (!update.gradient(product, tile, grads)) {
      failed.store(true, std::memory_order_relaxed);
      return;
    }
    update.update_weights(tile, grads);
    if (col == 0) update.update_biases(tile);
  });
  BARESTEP_REQUIRE(!failed.load(std::memory_order_relaxed), "the library computed no product");
}

}  // namespace barestep
