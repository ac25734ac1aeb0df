#include "kernels/cpu/product.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "kernels/cpu/vector_kernels.h"

// Defined in the sanitizer's runtime library; null if the program is not linked to it.
extern "C" __attribute__((weak)) void __tsan_read_range(void* address, std::size_t bytes);
extern "C" __attribute__((weak)) void __tsan_write_range(void* address, std::size_t bytes);

namespace barestep {
namespace {

[[noreturn]] void refuse(const std::string& provider, const std::string& library,
                         const std::string& feature) {
  fail(ExitCode::kConfiguration,
       {"--gemm", provider, "this build has no " + library,
        "take --gemm own, or configure with -DBARESTEP_" + feature + "=ON"});
}

}  // namespace

std::unique_ptr<Product> make_product(GemmProvider provider, Precision precision,
                                      Instructions most) {
  std::unique_ptr<Product> product;
  switch (provider) {
    case GemmProvider::kAuto:
      product = make_onednn_product();
      if (precision == Precision::kBf16 && product != nullptr && product->takes(DType::kBF16)) {
        return product;
      }
      return make_own_product(most);
    case GemmProvider::kOwn:
      return make_own_product(most);
    case GemmProvider::kReference:
      return make_reference_product();
    case GemmProvider::kOneDnn:
      product = make_onednn_product();
      if (product == nullptr) refuse("onednn", "oneDNN", "ONEDNN");
      return product;
    case GemmProvider::kCblas:
      product = make_cblas_product();
      if (product == nullptr) refuse("cblas", "OpenBLAS", "CBLAS");
      return product;
  }
  return product;
}

namespace {

/// Tiles of c whose sums and operands fit in the first-level cache.
constexpr std::int64_t kBlock = kPlainBlock;
using BlockOfSums = PlainBlock;

/// A row-major matrix, or the transpose of one.
struct Matrix {
  const float* values;
  std::int64_t stride;
  bool transposed;

  /// block[i][j] = the element at (row + i, col + j).
  void load(std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols,
            BlockOfSums& block) const {
    const std::int64_t step_row = transposed ? 1 : stride;
    const std::int64_t step_col = transposed ? stride : 1;
    const float* first = values + row * step_row + col * step_col;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j) block[i][j] = first[i * step_row + j * step_col];
  }
};

/// sums += the block of a b whose top left corner is tile's `row` and `col`, in the order of k.
void sum_block(const Matrix& a, const Matrix& b, const Tile& tile, std::int64_t depth,
               BlockOfSums& sums) {
  BlockOfSums a_block = {};
  BlockOfSums b_block = {};
  for (std::int64_t k = 0; k < depth; k += kBlock) {
    const std::int64_t count = std::min(kBlock, depth - k);
    a.load(tile.row, tile.rows, k, count, a_block);
    b.load(k, count, tile.col, tile.cols, b_block);
    vector_kernels().multiply_plainly(a_block, b_block, tile.rows, count, sums);
  }
}

class ReferenceProduct final : public Product {
 public:
  [[nodiscard]] std::string_view name() const override { return "reference"; }

  void prepare(const Gemm&, const ThreadPool&) override {}

  [[nodiscard]] bool is_reference() const override { return true; }

  [[nodiscard]] bool multiply(const TileProduct& p) const noexcept override {
    const Matrix a{p.a, p.stride_a, p.transpose_a};
    const Matrix b{p.b, p.stride_b, p.transpose_b};
    for (std::int64_t row = 0; row < p.m; row += kBlock) {
      for (std::int64_t col = 0; col < p.n; col += kBlock) {
        const Tile tile{row, std::min(kBlock, p.m - row), col, std::min(kBlock, p.n - col)};
        float* const c = p.c + row * p.stride_c + col;
        BlockOfSums sums = {};
        for (std::int64_t i = 0; p.beta != 0 && i < tile.rows; ++i)
          std::copy_n(c + i * p.stride_c, tile.cols, sums[i]);
        sum_block(a, b, tile, p.k, sums);
        for (std::int64_t i = 0; i < tile.rows; ++i)
          std::copy_n(sums[i], tile.cols, c + i * p.stride_c);
      }
    }
    return true;
  }

  void run(const Gemm& op, const Addresses& addresses, ThreadPool& pool) override {
    run_tiles(*this, op, addresses, pool);
  }
};

}  // namespace

std::unique_ptr<Product> make_reference_product() {
  return std::make_unique<ReferenceProduct>();
}

namespace {

void announce(void (*range)(void*, std::size_t), const void* first, std::int64_t rows,
              std::int64_t bytes, std::int64_t stride) {
  if (range == nullptr) return;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto* const begin = static_cast<const std::byte*>(first) + row * stride;
    range(const_cast<std::byte*>(begin), static_cast<std::size_t>(bytes));
  }
}

}  // namespace

void announce_read(const void* first, std::int64_t rows, std::int64_t bytes, std::int64_t stride) {
  announce(__tsan_read_range, first, rows, bytes, stride);
}

void announce_write(const void* first, std::int64_t rows, std::int64_t bytes, std::int64_t stride) {
  announce(__tsan_write_range, first, rows, bytes, stride);
}

}  // namespace barestep
