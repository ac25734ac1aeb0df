#include <cblas.h>

#include <algorithm>
#include <limits>
#include <string>

#include "core/error.h"
#include "kernels/formulas.h"
#include "kernels/product.h"
#include "kernels/sanitizer_ranges.h"

namespace barestep {
namespace {

/// The narrowest tile: narrower ones spend their time packing the operand they share.
constexpr std::int64_t kLeastTileExtent = 64;

/// The fewest multiply-adds of a tile: a few microseconds, the price of waking a thread.
constexpr std::int64_t kLeastTileWork = std::int64_t{1} << 18;

/// Tiles begin at multiples of this, a cache line of floats.
constexpr std::int64_t kTileAlignment = 16;

/// A product with its addresses; rows and columns of a, b and c are those of op(a), op(b) and c.
struct BoundGemm {
  const Gemm& op;
  std::int64_t m, n, k;
  const float* a;
  const float* b;
  const float* bias;  // or null
  float* c;
};

/// Rows and columns [row, row + rows) x [col, col + cols) of c.
struct Tile {
  std::int64_t row, rows, col, cols;
};

BoundGemm bind(const Gemm& op, const Addresses& addresses) {
  return {.op = op,
          .m = op.c.rows,
          .n = op.c.cols,
          .k = op.transpose_a ? op.a.rows : op.a.cols,
          .a = addresses.at(op.a),
          .b = addresses.at(op.b),
          .bias = op.bias ? addresses.at(*op.bias) : nullptr,
          .c = addresses.at(op.c)};
}

/// What c holds before the product is added to it; returns the beta to add with.
float begin_tile(const BoundGemm& g, const Tile& tile) {
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

void relu_tile(const BoundGemm& g, const Tile& tile) {
  for (std::int64_t i = tile.row; i < tile.row + tile.rows; ++i) {
    float* row = g.c + i * g.n;
    for (std::int64_t j = tile.col; j < tile.col + tile.cols; ++j) row[j] = relu(row[j]);
  }
}

void multiply_tile(const BoundGemm& g, const Tile& tile, float beta) {
  const std::int64_t stride_a = g.op.a.cols;
  const std::int64_t stride_b = g.op.b.cols;
  const float* a = g.a + (g.op.transpose_a ? tile.row : tile.row * stride_a);
  const float* b = g.b + (g.op.transpose_b ? tile.col * stride_b : tile.col);
  float* c = g.c + tile.row * g.n + tile.col;

  announce_read(a, g.op.transpose_a ? g.k : tile.rows, g.op.transpose_a ? tile.rows : g.k,
                stride_a);
  announce_read(b, g.op.transpose_b ? tile.cols : g.k, g.op.transpose_b ? g.k : tile.cols,
                stride_b);
  announce_write(c, tile.rows, tile.cols, g.n);
  const auto as_int = [](std::int64_t extent) { return static_cast<blasint>(extent); };
  cblas_sgemm(CblasRowMajor, g.op.transpose_a ? CblasTrans : CblasNoTrans,
              g.op.transpose_b ? CblasTrans : CblasNoTrans, as_int(tile.rows), as_int(tile.cols),
              as_int(g.k), 1, a, as_int(stride_a), b, as_int(stride_b), beta, c, as_int(g.n));
}

void run_tile(const BoundGemm& g, const Tile& tile) {
  const float beta = begin_tile(g, tile);
  if (g.k > 0) multiply_tile(g, tile, beta);
  if (g.op.relu) relu_tile(g, tile);
}

/// "OpenBLAS 0.3.21 Haswell": library, version, and the kernels it picked for this processor.
std::string describe_library() {
  const std::string config = openblas_get_config();
  const auto version_end = config.find(' ', config.find(' ') + 1);
  return config.substr(0, version_end) + " " + openblas_get_corename();
}

class CblasProduct final : public Product {
 public:
  /// The library's own threads stay asleep for the whole process: the pool splits.
  CblasProduct() : name_(describe_library()) { openblas_set_num_threads(1); }

  [[nodiscard]] std::string_view name() const override { return name_; }

  void prepare(const Gemm& op) override {
    constexpr std::int64_t kMost = std::numeric_limits<blasint>::max();
    for (const Tensor& t : {op.a, op.b, op.c})
      BARESTEP_REQUIRE(t.rows <= kMost && t.cols <= kMost,
                       "an extent is too large for the library");
  }

  void run(const Gemm& op, const Addresses& addresses, ThreadPool& pool) override {
    const BoundGemm g = bind(op, addresses);
    if (g.m == 0 || g.n == 0) return;
    const bool split_rows = g.m >= g.n;
    const std::int64_t extent = split_rows ? g.m : g.n;
    const std::int64_t most = std::min(extent / kLeastTileExtent, g.m * g.n * g.k / kLeastTileWork);
    const std::int64_t tiles = std::clamp(most, std::int64_t{1}, std::int64_t{pool.threads()});
    const std::int64_t width = tiles == 1 ? extent
                                          : ((extent + tiles - 1) / tiles + kTileAlignment - 1) /
                                                kTileAlignment * kTileAlignment;
    for_ranges(pool, extent, width, [&](std::int64_t begin, std::int64_t end) {
      run_tile(g, split_rows ? Tile{begin, end - begin, 0, g.n} : Tile{0, g.m, begin, end - begin});
    });
  }

 private:
  std::string name_;
};

}  // namespace

std::unique_ptr<Product> make_cblas_product() {
  return std::make_unique<CblasProduct>();
}

}  // namespace barestep
