#include <cblas.h>

#include <limits>
#include <string>

#include "core/error.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/product_tiles.h"

// Defined in builds of OpenBLAS with its own threads; null in others.
// NOLINTNEXTLINE(readability-identifier-naming): the library's name for it.
extern "C" __attribute__((weak)) int blas_thread_shutdown_();

namespace barestep {
namespace {

/// "OpenBLAS 0.3.21 Haswell": library, version, and the kernels it selected for this processor.
std::string describe_library() {
  const std::string config = openblas_get_config();
  const auto version_end = config.find(' ', config.find(' ') + 1);
  return config.substr(0, version_end) + " " + openblas_get_corename();
}

class CblasProduct final : public Product {
 public:
  CblasProduct() : name_(describe_library()) { stop_cblas_threads(); }

  [[nodiscard]] std::string_view name() const override { return name_; }

  void prepare(const Gemm& op, const ThreadPool& /*pool*/) override {
    constexpr std::int64_t kMost = std::numeric_limits<blasint>::max();
    for (const Tensor& t : {op.a, op.b, op.c})
      BARESTEP_REQUIRE(t.rows <= kMost && t.cols <= kMost,
                       "an extent is too large for the library");
  }

  [[nodiscard]] bool multiply(const TileProduct& p) const noexcept override {
    const auto transpose = [](bool asked) { return asked ? CblasTrans : CblasNoTrans; };
    const auto as_int = [](std::int64_t extent) { return static_cast<blasint>(extent); };
    cblas_sgemm(CblasRowMajor, transpose(p.transpose_a), transpose(p.transpose_b), as_int(p.m),
                as_int(p.n), as_int(p.k), 1, p.a, as_int(p.stride_a), p.b, as_int(p.stride_b),
                p.beta, p.c, as_int(p.stride_c));
    return true;
  }

  void run(const Gemm& op, const Addresses& addresses, ThreadPool& pool) override {
    const BoundGemm g = bind(op, addresses);
    if (g.m == 0 || g.n == 0) return;
    const Tiling tiles = tiling_of(op, pool.threads());
    pool.run(tiles.count(), [&](std::int64_t i, int) {
      const TileProduct product = begin_tile(g, tiles[i]);
      if (product.k > 0) static_cast<void>(multiply(product));
      activation_tile(g, tiles[i]);
    });
  }

 private:
  std::string name_;
};

}  // namespace

std::unique_ptr<Product> make_cblas_product() {
  return std::make_unique<CblasProduct>();
}

void stop_cblas_threads() {
  openblas_set_num_threads(1);
  if (blas_thread_shutdown_ != nullptr) blas_thread_shutdown_();
}

}  // namespace barestep
