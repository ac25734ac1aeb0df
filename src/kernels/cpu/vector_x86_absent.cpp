// For processors without vector kernels.
#include "kernels/cpu/attention.h"
#include "kernels/cpu/linear_adam_kernel.h"

namespace barestep {

LinearAdamKernel linear_adam_kernel(LinearAdamIsa /*most*/) {
  return {};
}

AttentionKernel attention_kernel(LinearAdamIsa /*most*/) {
  return plain_attention_kernel();
}

}  // namespace barestep
