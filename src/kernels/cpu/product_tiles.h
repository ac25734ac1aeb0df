// Code shared by the library providers: splitting c into a tile for each thread, and the work
// before and after the library multiplies a tile.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/addresses.h"
#include "core/ops.h"

namespace barestep {

/// A product with its addresses; the rows and columns are those of op(a), op(b) and c.
struct BoundGemm {
  const Gemm& op;
  std::int64_t m, n, k;
  const float* a;
  const float* b;
  const float* bias;  // may be null
  float* c;
  float* pre_activation;  // may be null
};

BoundGemm bind(const Gemm& op, const Addresses& addresses);

/// Rows and columns [row, row + rows) x [col, col + cols) of c.
struct Tile {
  std::int64_t row, rows, col, cols;
};

/// Strips of whole rows or whole columns of c, all of the same width except the last. As few and as
/// wide as possible while all threads are busy: narrow tiles spend too much time packing the
/// operand that they share.
struct Tiling {
  std::int64_t m, n;
  bool by_rows;
  std::int64_t width;

  [[nodiscard]] std::int64_t extent() const { return by_rows ? m : n; }
  [[nodiscard]] std::int64_t count() const { return (extent() + width - 1) / width; }
  [[nodiscard]] Tile operator[](std::int64_t i) const {
    const std::int64_t begin = i * width;
    const std::int64_t size = std::min(width, extent() - begin);
    return by_rows ? Tile{begin, size, 0, n} : Tile{0, m, begin, size};
  }
};

/// Cuts the longer side of c.
Tiling tiling_of(const Gemm& op, int threads);
/// Cuts the rows, or the columns. Neither extent of c may be 0.
Tiling tiling_of(const Gemm& op, int threads, bool by_rows);

/// c = beta * c + op(a) op(b), with the arguments of a BLAS.
struct TileProduct {
  bool transpose_a, transpose_b;
  std::int64_t m, n, k;
  const float* a;
  std::int64_t stride_a;
  const float* b;
  std::int64_t stride_b;
  float beta;
  float* c;
  std::int64_t stride_c;
};

/// The operands of a tile, with the op's beta. Announces to ThreadSanitizer what the library will
/// access.
TileProduct operands_of(const BoundGemm& g, const Tile& tile);

/// Announces to ThreadSanitizer what the library will read.
void announce_operands(const TileProduct& product);

/// Writes the initial value of c, such as the bias. The result has the beta with which the product
/// is to be added. Its k may be 0: then nothing remains to be multiplied.
TileProduct begin_tile(const BoundGemm& g, const Tile& tile);

/// The activation, if the op has one.
void activation_tile(const BoundGemm& g, const Tile& tile);

/// Writes c of the tile from the sums of op(a) op(b), whose rows are row_sums numbers apart, with
/// bias, beta and activation, in the op's types.
void finish_tile(const Gemm& op, const Addresses& addresses, const Tile& tile, const float* sums,
                 std::int64_t row_sums);

/// The bias and the activation, for a c that did not start with the bias.
void bias_activation_tile(const BoundGemm& g, const Tile& tile);

}  // namespace barestep
