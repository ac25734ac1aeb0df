// For processors whose vectors the fused update is not written for.
#include "kernels/cpu/linear_adam_kernel.h"

namespace barestep {

LinearAdamKernel linear_adam_kernel(LinearAdamIsa /*most*/) {
  return {};
}

}  // namespace barestep
