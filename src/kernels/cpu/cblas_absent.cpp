// Replaces product_cblas.cpp in builds without OpenBLAS.
#include "kernels/cpu/product.h"

namespace barestep {

std::unique_ptr<Product> make_cblas_product() {
  return nullptr;
}

}  // namespace barestep
