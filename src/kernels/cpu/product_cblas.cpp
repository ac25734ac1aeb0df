#include <cblas.h>

#include <cstdlib>
#include <limits>
#include <optional>
#include <string>

#include "core/error.h"
#include "core/shared_library.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/product_tiles.h"

namespace barestep {
namespace {

/// OpenBLAS. While it is loaded it starts threads, and where the system allows none it ends the
/// program. So it is loaded at its first use, and told to start none: our pool splits products.
struct CblasLibrary {
  decltype(&cblas_sgemm) sgemm = nullptr;
  decltype(&openblas_get_config) config = nullptr;
  decltype(&openblas_get_corename) core_name = nullptr;
};

void* open_cblas() {
  constexpr const char* kThreads = "OPENBLAS_NUM_THREADS";
  const char* const set = std::getenv(kThreads);
  const std::optional<std::string> before = set == nullptr ? std::nullopt : std::optional(set);
  ::setenv(kThreads, "1", 1);
  const std::string file = BARESTEP_CBLAS;
  std::string why;
  void* const library = load_library({&file, 1}, why);
  // Programs that this one starts may use more.
  if (before) {
    ::setenv(kThreads, before->c_str(), 1);
  } else {
    ::unsetenv(kThreads);
  }
  return library;
}

/// Null functions if the library is not where the build found it.
CblasLibrary load_cblas() {
  void* const library = open_cblas();
  if (library == nullptr) return {};
  const auto find = [&]<class Function>(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(function_of(library, name));
  };
  CblasLibrary loaded;
  find(loaded.sgemm, "cblas_sgemm");
  find(loaded.config, "openblas_get_config");
  find(loaded.core_name, "openblas_get_corename");
  return loaded;
}

const CblasLibrary& cblas() {
  static const CblasLibrary library = load_cblas();
  return library;
}

/// "OpenBLAS 0.3.21 Haswell": library, version, and the kernels it selected for this processor.
std::string describe_library() {
  const std::string config = cblas().config();
  const auto version_end = config.find(' ', config.find(' ') + 1);
  return config.substr(0, version_end) + " " + cblas().core_name();
}

class CblasProduct final : public Product {
 public:
  CblasProduct() : name_(describe_library()) {}

  [[nodiscard]] std::string_view name() const override { return name_; }

  void prepare(const Gemm& op, const ThreadPool& /*pool*/) override {
    constexpr std::int64_t kMax = std::numeric_limits<blasint>::max();
    for (const Tensor& t : {op.a, op.b, op.c})
      BARESTEP_REQUIRE(t.rows <= kMax && t.cols <= kMax, "an extent is too large for the library");
  }

  [[nodiscard]] bool multiply(const TileProduct& p) const noexcept override {
    const auto transpose = [](bool transposed) { return transposed ? CblasTrans : CblasNoTrans; };
    const auto as_int = [](std::int64_t extent) { return static_cast<blasint>(extent); };
    cblas().sgemm(CblasRowMajor, transpose(p.transpose_a), transpose(p.transpose_b), as_int(p.m),
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
  if (cblas().sgemm == nullptr) return nullptr;
  return std::make_unique<CblasProduct>();
}

}  // namespace barestep
