// Products of 16-bit operands for providers that accept only fp32. Widening is exact and sums are
// in fp32 as everywhere, so only the order of the sums differs.
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "core/error.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/widen.h"

namespace barestep {
namespace {

/// The amount that a thread widens at a time: three quarters of a 512 KiB second-level cache.
constexpr std::int64_t kWidenedOfB = 65536;
constexpr std::int64_t kWidenedOfA = kWidenedOfB / 2;

/// The tile of c that is being summed; it shares that cache.
constexpr std::int64_t kWidenedTileRows = 128;
constexpr std::int64_t kWidenedTileCols = 256;
/// For a transposed b, so that its rows are read in longer runs.
constexpr std::int64_t kWidenedTileColsOfRows = 128;
constexpr std::int64_t kMinWidenedCols = 64;
static_assert(kWidenedTileRows <= kMaxTileRows && kWidenedTileCols <= kMaxTileCols);

/// Widens rows `row` .. row + rows - 1 and columns `col` .. col + cols - 1 of a matrix to fp32.
template <class Number>
void widen_part(const Addresses& addresses, const Tensor& from, const Tile& part, float* to) {
  const Number* const first = addresses.at<Number>(from) + part.row * from.cols + part.col;
  for (std::int64_t i = 0; i < part.rows; ++i) {
    widen(first + i * from.cols, part.cols, to + i * part.cols);
  }
}

/// The same part of op(a) or op(b) in a or b, before the transposition.
Tile before_transposition(bool transpose, const Tile& part) {
  return transpose ? Tile{part.col, part.cols, part.row, part.rows} : part;
}

/// sums = beta * sums + the product of `depth` columns of op(a), from `first` on, and the same rows
/// of op(b).
template <class Number>
bool multiply_part(const Product& product, const Gemm& op, const Addresses& addresses,
                   const Tile& tile, std::int64_t first, std::int64_t depth, float* sums) {
  alignas(64) float a[kWidenedOfA];
  alignas(64) float b[kWidenedOfB];
  const Tile of_a = before_transposition(op.transpose_a, {tile.row, tile.rows, first, depth});
  const Tile of_b = before_transposition(op.transpose_b, {first, depth, tile.col, tile.cols});
  widen_part<Number>(addresses, op.a, of_a, a);
  widen_part<Number>(addresses, op.b, of_b, b);
  return product.multiply({.transpose_a = op.transpose_a,
                           .transpose_b = op.transpose_b,
                           .m = tile.rows,
                           .n = tile.cols,
                           .k = depth,
                           .a = a,
                           .stride_a = of_a.cols,
                           .b = b,
                           .stride_b = of_b.cols,
                           .beta = first == 0 ? 0.0F : 1.0F,
                           .c = sums,
                           .stride_c = tile.cols});
}

}  // namespace

bool multiply_tile(const Product& product, const Gemm& op, const Addresses& addresses,
                   const Tile& tile, float* sums) noexcept {
  const std::int64_t k = op.transpose_a ? op.a.rows : op.a.cols;
  if (k == 0) {
    std::fill_n(sums, tile.rows * tile.cols, 0.0F);
    return true;
  }
  if (op.a.dtype == DType::kF32) {
    TileProduct part{.transpose_a = op.transpose_a,
                     .transpose_b = op.transpose_b,
                     .m = tile.rows,
                     .n = tile.cols,
                     .k = k,
                     .a = addresses.at(op.a) + (op.transpose_a ? tile.row : tile.row * op.a.cols),
                     .stride_a = op.a.cols,
                     .b = addresses.at(op.b) + (op.transpose_b ? tile.col * op.b.cols : tile.col),
                     .stride_b = op.b.cols,
                     .beta = 0,
                     .c = sums,
                     .stride_c = tile.cols};
    announce_operands(part);
    return product.multiply(part);
  }
  const std::int64_t depth = std::min(kWidenedOfA / tile.rows, kWidenedOfB / tile.cols);
  return with_number(op.a.dtype, [&]<class Number>(Number) {
    for (std::int64_t first = 0; first < k; first += depth) {
      const std::int64_t count = std::min(depth, k - first);
      if (!multiply_part<Number>(product, op, addresses, tile, first, count, sums)) return false;
    }
    return true;
  });
}

void run_tiles(const Product& product, const Gemm& op, const Addresses& addresses,
               ThreadPool& pool) {
  const std::int64_t down = (op.c.rows + kWidenedTileRows - 1) / kWidenedTileRows;
  if (down == 0) return;
  // Uses narrower tiles if there would be fewer tiles than threads.
  const std::int64_t share = op.c.cols * down / pool.threads();
  const std::int64_t max = op.transpose_b ? kWidenedTileColsOfRows : kWidenedTileCols;
  const std::int64_t width =
      std::clamp(share / kMinWidenedCols * kMinWidenedCols, kMinWidenedCols, max);
  const std::int64_t across = (op.c.cols + width - 1) / width;
  std::atomic<bool> failed{false};
  pool.run(down * across, [&](std::int64_t task, int) {
    const std::int64_t row = task / across * kWidenedTileRows;
    const std::int64_t col = task % across * width;
    const Tile tile{row, std::min(kWidenedTileRows, op.c.rows - row), col,
                    std::min(width, op.c.cols - col)};
    alignas(64) float sums[kWidenedTileRows * kWidenedTileCols];
    if (!multiply_tile(product, op, addresses, tile, sums)) {
      failed.store(true, std::memory_order_relaxed);
      return;
    }
    finish_tile(op, addresses, tile, sums, tile.cols);
  });
  BARESTEP_REQUIRE(!failed.load(std::memory_order_relaxed), "the library computed no product");
}

}  // namespace barestep
