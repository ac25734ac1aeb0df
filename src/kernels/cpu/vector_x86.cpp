// Selects the vector kernels that this processor can run. Compiled for any x86 processor, since
// code that checks for instructions must not use them.
#include "kernels/cpu/activation.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/linear_adam_kernel.h"

namespace barestep {
namespace {

bool runs_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("bmi2") != 0;
}

bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512cd") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}

}  // namespace

LinearAdamKernel linear_adam_kernel(LinearAdamIsa max) {
  if (max >= LinearAdamIsa::kAvx512 && runs_avx512()) return {"AVX-512", update_by_avx512};
  if (max >= LinearAdamIsa::kAvx2 && runs_avx2()) return {"AVX2", update_by_avx2};
  return {};
}

GeluKernel gelu_kernel(LinearAdamIsa max) {
  if (max >= LinearAdamIsa::kAvx512 && runs_avx512()) return avx512_gelu_kernel();
  if (max >= LinearAdamIsa::kAvx2 && runs_avx2()) return avx2_gelu_kernel();
  return plain_gelu_kernel();
}

AttentionKernel attention_kernel(LinearAdamIsa max) {
  AttentionKernel kernel = plain_attention_kernel();
  if (max >= LinearAdamIsa::kAvx512 && runs_avx512()) {
    kernel = avx512_attention_kernel();
    kernel.name = "AVX-512";
  } else if (max >= LinearAdamIsa::kAvx2 && runs_avx2()) {
    kernel = avx2_attention_kernel();
    kernel.name = "AVX2";
  }
  return kernel;
}

}  // namespace barestep
