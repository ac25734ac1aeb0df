#include "kernels/cpu/linear_adam.h"

#include <algorithm>
#include <atomic>

#include "core/error.h"
#include "kernels/cpu/cascade_sum.h"
#include "kernels/loop_ops.h"

namespace barestep {

Gemm weight_gradient_of(const LinearAdam& op) {
  return {.c = op.weight, .a = op.grad_y, .b = op.x, .transpose_a = true};
}

namespace {

/// So that biases are summed in the same order as in SumRows.
static_assert(kLinearAdamTileRows % kSumColumns == 0);

/// An op with its addresses.
struct BoundUpdate {
  const LinearAdam& op;
  const Addresses& addresses;
  AdamConstants constants{op.step};
  AdamScalars scalars{constants, addresses.at(op.scalars),
                      op.clip ? addresses.at(*op.clip) : nullptr};

  /// Returns false if the library failed.
  bool gradient(const Product& product, const Tile& tile, float* grads) const {
    return multiply_tile(product, weight_gradient_of(op), addresses, tile, grads);
  }

  template <class Number>
  void update_weights(const Tile& tile, const float* grads) const {
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      const std::int64_t first = (tile.row + row) * op.weight.cols + tile.col;
      const UpdateElement<AdamRule<false>, float, Number> element{
          addresses.at(op.weight) + first,
          grads + row * tile.cols,
          {{addresses.at(op.weight_moments1) + first, addresses.at(op.weight_moments2) + first}},
          {constants},
          scalars,
          op.rounded_weight ? addresses.at<Number>(*op.rounded_weight) + first : nullptr,
          1.0F};
      for (std::int64_t col = 0; col < tile.cols; ++col) element(col);
    }
  }

  /// Updates the biases of the rows first .. last - 1; first must be a multiple of kSumColumns.
  template <class Number>
  void update_biases(std::int64_t first, std::int64_t last) const {
    float* const bias = addresses.at(op.bias);
    float* const moments1 = addresses.at(op.bias_moments1);
    float* const moments2 = addresses.at(op.bias_moments2);
    sum_columns(addresses.at<Number>(op.grad_y), op.grad_y.rows, op.grad_y.cols, first, last,
                [&](std::int64_t i, float sum) {
                  const float grad = float_of(rounded<Number>(sum));
                  adam_step(constants, scalars, grad, bias[i], moments1[i], moments2[i]);
                  if (op.rounded_bias) {
                    addresses.at<Number>(*op.rounded_bias)[i] = rounded<Number>(bias[i]);
                  }
                });
  }
};

/// Updates in tiles whose gradients the product computes.
void run_by_tiles(const BoundUpdate& update, const Product& product, ThreadPool& pool) {
  const LinearAdam& op = update.op;
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
    with_number(op.x.dtype, [&]<class Number>(Number) {
      for (std::int64_t i = 0; i < tile.rows * tile.cols; ++i) {
        grads[i] = float_of(rounded<Number>(grads[i]));
      }
      update.update_weights<Number>(tile, grads);
      if (col == 0) update.update_biases<Number>(row, row + tile.rows);
    });
  });
  BARESTEP_REQUIRE(!failed.load(std::memory_order_relaxed), "the library computed no product");
}

/// The operands of a weight's gradient: a row for each of its rows, and one for each column.
struct GradientSides {
  OperandSide grad_y, x;
};
GradientSides sides_of(const LinearAdam& op, const float* grad_y, const float* x) {
  return {{grad_y, op.grad_y.cols, op.grad_y.rows, 1, op.grad_y.cols},
          {x, op.x.cols, op.x.rows, 1, op.x.cols}};
}

/// As wide as possible while x fits half of a 1 MiB second-level cache, since it is read again for
/// each group of rows.
std::int64_t strip_cols(std::int64_t batch) {
  constexpr std::int64_t kFloats = std::int64_t{1} << 17;
  constexpr std::int64_t kMin = 256;
  const std::int64_t cols = kFloats / std::max(batch, std::int64_t{1}) / kMin * kMin;
  return std::clamp(cols, kMin, kLinearAdamStripCols);
}

/// Updates in strips, one task each; the biases are updated in tasks of their own.
void run_by_strips(const BoundUpdate& update, const VectorKernels& kernels, Packs& packs,
                   ThreadPool& pool) {
  const LinearAdam& op = update.op;
  const Addresses& addresses = update.addresses;
  const GradientSides sides = sides_of(op, addresses.at(op.grad_y), addresses.at(op.x));
  const Packs::Taken taken = packs.take();
  float* const x = taken.floats();
  float* const grad_y = x + packed_size(sides.x, kernels.panel);
  pack_panels(kernels, sides.x, x, pool);
  pack_groups(sides.grad_y, grad_y, pool);

  constexpr std::int64_t kBiases = 8 * kSumColumns;
  const std::int64_t bias_tasks = slices_of(op.weight.rows, kBiases);
  const std::int64_t groups = slices_of(op.weight.rows, kGroupRows);
  const std::int64_t width = strip_cols(op.x.rows);
  const std::int64_t across = slices_of(op.weight.cols, width);
  // Four per thread: few enough that a strip has many groups, and enough for work stealing.
  const std::int64_t down = std::min(groups, std::int64_t{4} * pool.threads());
  pool.run(bias_tasks + down * across, [&](std::int64_t task, int) {
    if (task < bias_tasks) {
      const std::int64_t first = task * kBiases;
      return update.update_biases<float>(first, std::min(op.weight.rows, first + kBiases));
    }
    const std::int64_t strip = (task - bias_tasks) / across;
    const std::int64_t col = (task - bias_tasks) % across * width;
    const std::int64_t row = strip * groups / down * kGroupRows;
    const std::int64_t end = std::min(op.weight.rows, (strip + 1) * groups / down * kGroupRows);
    const std::int64_t at = row * op.weight.cols + col;
    kernels.update({.batch = op.x.rows,
                    .rows = end - row,
                    .cols = std::min(width, op.weight.cols - col),
                    .grad_y = grad_y + row * op.x.rows,
                    .x = x + col * op.x.rows,
                    .weight = addresses.at(op.weight) + at,
                    .moments1 = addresses.at(op.weight_moments1) + at,
                    .moments2 = addresses.at(op.weight_moments2) + at,
                    .stride = op.weight.cols,
                    .constants = update.constants,
                    .scalars = update.scalars});
  });
}

}  // namespace

void prepare_linear_adam(const LinearAdam& op, Product& product, const VectorKernels& kernels,
                         Packs& packs, const ThreadPool& pool) {
  if (op.x.dtype != DType::kF32) return product.prepare_tiles(pool);
  const GradientSides sides = sides_of(op, nullptr, nullptr);
  packs.reserve(packed_size(sides.x, kernels.panel) + packed_size(sides.grad_y, kGroupRows));
}

void run_linear_adam(const LinearAdam& op, const Addresses& addresses, const Product& product,
                     const VectorKernels& kernels, Packs& packs, ThreadPool& pool) {
  const BoundUpdate update{op, addresses};
  if (op.x.dtype == DType::kF32) {
    run_by_strips(update, kernels, packs, pool);
  } else {
    run_by_tiles(update, product, pool);
  }
}

}  // namespace barestep
