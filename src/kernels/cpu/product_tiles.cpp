#include "kernels/cpu/product_tiles.h"

#include "kernels/cpu/activation.h"
#include "kernels/cpu/product.h"
#include "kernels/loop_ops.h"

namespace barestep {
namespace {

constexpr std::int64_t kMinTileExtent = 64;

/// The minimum multiply-adds of a tile: a few microseconds, the cost of waking a thread.
constexpr std::int64_t kMinTileWork = std::int64_t{1} << 18;

/// Tiles begin at multiples of this, a cache line of floats.
constexpr std::int64_t kTileAlignment = 16;

/// Writes the initial c. Returns the beta with which the product is to be added.
float write_start(const BoundGemm& g, const Tile& tile) {
  if (g.bias != nullptr) {
    for (std::int64_t i = tile.row; i < tile.row + tile.rows; ++i)
      std::copy_n(g.bias + tile.col, tile.cols, g.c + i * g.n + tile.col);
    return 1;
  }
  if (g.k == 0) {
    for (std::int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
      float* row = g.c + i * g.n;
      for (std::int64_t j = tile.col; j < tile.col + tile.cols; ++j)
        row[j] = accumulate(0, g.op.beta, row[j]);
    }
  }
  return g.op.beta;
}

}  // namespace

BoundGemm bind(const Gemm& op, const Addresses& addresses) {
  return {.op = op,
          .m = op.c.rows,
          .n = op.c.cols,
          .k = op.transpose_a ? op.a.rows : op.a.cols,
          .a = addresses.at(op.a),
          .b = addresses.at(op.b),
          .bias = op.bias ? addresses.at(*op.bias) : nullptr,
          .c = addresses.at(op.c),
          .pre_activation = op.pre_activation ? addresses.at(*op.pre_activation) : nullptr};
}

Tiling tiling_of(const Gemm& op, int threads) {
  return tiling_of(op, threads, op.c.rows >= op.c.cols);
}

Tiling tiling_of(const Gemm& op, int threads, bool by_rows) {
  const std::int64_t k = op.transpose_a ? op.a.rows : op.a.cols;
  const std::int64_t extent = by_rows ? op.c.rows : op.c.cols;
  const std::int64_t max = std::min(extent / kMinTileExtent, op.c.size() * k / kMinTileWork);
  const std::int64_t tiles = std::clamp(max, std::int64_t{1}, std::int64_t{threads});
  const std::int64_t share = (extent + tiles - 1) / tiles;
  const std::int64_t width =
      tiles == 1 ? extent : (share + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
  return {op.c.rows, op.c.cols, by_rows, width};
}

TileProduct operands_of(const BoundGemm& g, const Tile& tile) {
  const std::int64_t stride_a = g.op.a.cols;
  const std::int64_t stride_b = g.op.b.cols;
  const TileProduct product{
      .transpose_a = g.op.transpose_a,
      .transpose_b = g.op.transpose_b,
      .m = tile.rows,
      .n = tile.cols,
      .k = g.k,
      .a = g.a + (g.op.transpose_a ? tile.row : tile.row * stride_a),
      .stride_a = stride_a,
      .b = g.b + (g.op.transpose_b ? tile.col * stride_b : tile.col),
      .stride_b = stride_b,
      .beta = g.op.beta,
      .c = g.c + tile.row * g.n + tile.col,
      .stride_c = g.n,
  };
  announce_operands(product);
  announce_write(product.c, product.m, product.n * std::int64_t{sizeof(float)},
                 product.stride_c * std::int64_t{sizeof(float)});
  return product;
}

void announce_operands(const TileProduct& product) {
  const auto& [ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc] = product;
  constexpr std::int64_t kBytes = sizeof(float);
  announce_read(a, ta ? k : m, (ta ? m : k) * kBytes, lda * kBytes);
  announce_read(b, tb ? n : k, (tb ? k : n) * kBytes, ldb * kBytes);
}

TileProduct begin_tile(const BoundGemm& g, const Tile& tile) {
  const float beta = write_start(g, tile);
  TileProduct product = operands_of(g, tile);
  product.beta = beta;
  return product;
}

void activation_tile(const BoundGemm& g, const Tile& tile) {
  if (g.op.activation == Activation::kNone) return;
  with_activation(g.op.activation, [&]<class Formula>(Formula) {
    const ActivationElement<Formula> element{g.c, g.pre_activation};
    for (std::int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
      const std::int64_t first = i * g.n + tile.col;
      const float* const row = g.c + first;
      activate_run(element, first, tile.cols, [row](std::int64_t j) { return row[j]; });
    }
  });
}

void finish_tile(const Gemm& op, const Addresses& addresses, const Tile& tile, const float* sums,
                 std::int64_t row_sums) {
  with_number(op.c.dtype, [&]<class Number>(Number) {
    const auto at = [&](const std::optional<Tensor>& tensor) {
      return tensor ? addresses.at<Number>(*tensor) : nullptr;
    };
    Number* const c = addresses.at<Number>(op.c);
    const Number* const bias = op.bias ? at(op.bias) + tile.col : nullptr;
    with_activation(op.activation, [&]<class Formula>(Formula) {
      const ActivationElement<Formula, Number> element{c, at(op.pre_activation)};
      for (std::int64_t i = 0; i < tile.rows; ++i) {
        const std::int64_t first = (tile.row + i) * op.c.cols + tile.col;
        const float* const row = sums + i * row_sums;
        const auto run = [&](const auto& x) { activate_run(element, first, tile.cols, x); };
        if (bias != nullptr) {
          run([=](std::int64_t j) { return row[j] + float_of(bias[j]); });
        } else if (op.beta == 0) {
          run([=](std::int64_t j) { return row[j]; });
        } else {
          const float beta = op.beta;
          run([=](std::int64_t j) { return row[j] + beta * float_of(c[first + j]); });
        }
      }
    });
  });
}

void bias_activation_tile(const BoundGemm& g, const Tile& tile) {
  if (g.bias == nullptr) return activation_tile(g, tile);
  with_activation(g.op.activation, [&]<class Formula>(Formula) {
    const ActivationElement<Formula> element{g.c, g.pre_activation};
    const float* const bias = g.bias + tile.col;
    for (std::int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
      const std::int64_t first = i * g.n + tile.col;
      const float* const row = g.c + first;
      activate_run(element, first, tile.cols, [=](std::int64_t j) { return row[j] + bias[j]; });
    }
  });
}

}  // namespace barestep
