// For processors without vector kernels.
#include "kernels/cpu/activation.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/linear_adam_kernel.h"

namespace barestep {

LinearAdamKernel linear_adam_kernel(LinearAdamIsa /*most*/) {
  return {};
}

GeluKernel gelu_kernel(LinearAdamIsa /*most*/) {
  return plain_gelu_kernel();
}

AttentionKernel attention_kernel(LinearAdamIsa /*most*/) {
  return plain_attention_kernel();
}

}  // namespace barestep
