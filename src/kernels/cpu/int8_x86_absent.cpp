// For processors without int8 kernels here.
#include "kernels/cpu/int8_product.h"

namespace barestep {

Int8Kernel vnni_kernel(int /*bits*/) {
  return {"", nullptr, 0};
}

}  // namespace barestep
