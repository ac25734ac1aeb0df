#include "kernels/product.h"

#include "core/error.h"

namespace barestep {

std::unique_ptr<Product> make_product(GemmProvider provider) {
  if (provider == GemmProvider::kReference) return make_reference_product();
  if (std::unique_ptr<Product> product = make_cblas_product()) return product;
  if (provider == GemmProvider::kAuto) return make_reference_product();
  fail(ExitCode::kConfiguration, {"--gemm", "cblas", "this build has no OpenBLAS",
                                  "take --gemm reference, or configure with -DBARESTEP_CBLAS=ON"});
}

}  // namespace barestep
