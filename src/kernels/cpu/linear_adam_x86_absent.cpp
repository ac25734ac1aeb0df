// For processors without a kernel of the fused update.
#include "kernels/cpu/linear_adam_kernel.h"

namespace barestep {

LinearAdamKernel linear_adam_kernel(LinearAdamIsa /*most*/) {
  return {};
}

}  // namespace barestep
