// For processors without kernels of their own: plain loops.
#include "kernels/cpu/vector_kernels.h"
#include "kernels/cpu/widen.h"

namespace barestep {

ByteKernel vnni_kernel(int /*bits*/) {
  return {"", nullptr, 0};
}

const VectorKernels& vector_kernels(Instructions /*max*/) {
  return kPlainKernels;
}

void widen(const F16* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = float_of(from[i]);
}

void narrow(const float* from, std::int64_t count, F16* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = f16_of(from[i]);
}

}  // namespace barestep
