#include "kernels/cpu/product.h"

#include <string>

#include "core/error.h"

namespace barestep {
namespace {

[[noreturn]] void refuse(const std::string& provider, const std::string& library,
                         const std::string& feature) {
  fail(ExitCode::kConfiguration,
       {"--gemm", provider, "this build has no " + library,
        "take --gemm reference, or configure with -DBARESTEP_" + feature + "=ON"});
}

}  // namespace

std::unique_ptr<Product> make_product(GemmProvider provider) {
  stop_cblas_threads();
  const bool any = provider == GemmProvider::kAuto;
  std::unique_ptr<Product> product;
  if (any || provider == GemmProvider::kOneDnn) product = make_onednn_product();
  if (product == nullptr && (any || provider == GemmProvider::kCblas)) {
    product = make_cblas_product();
  }
  if (product != nullptr) return product;
  if (provider == GemmProvider::kOneDnn) refuse("onednn", "oneDNN", "ONEDNN");
  if (provider == GemmProvider::kCblas) refuse("cblas", "OpenBLAS", "CBLAS");
  return make_reference_product();
}

}  // namespace barestep
