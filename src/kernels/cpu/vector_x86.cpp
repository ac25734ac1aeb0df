// Selects the vector kernels that this processor can run. Compiled for any x86 processor, since
// code that checks for instructions must not use them.
#include "kernels/cpu/vector_kernels.h"

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

const VectorKernels& vector_kernels(Instructions max) {
  const auto allows = [max](Instructions needed) {
    return max == Instructions::kAuto || max >= needed;
  };
  if (allows(Instructions::kAvx512) && runs_avx512()) return kAvx512Kernels;
  if (allows(Instructions::kAvx2) && runs_avx2()) return kAvx2Kernels;
  return kPlainKernels;
}

}  // namespace barestep
