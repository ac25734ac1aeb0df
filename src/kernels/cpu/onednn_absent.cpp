// Replaces product_onednn.cpp in builds without oneDNN.
#include "kernels/cpu/product.h"

namespace barestep {

std::unique_ptr<Product> make_onednn_product() {
  return nullptr;
}

}  // namespace barestep
