// For processors without vector kernels of their own.
#include "kernels/cpu/vector_kernels.h"

namespace barestep {

const VectorKernels& vector_kernels(Instructions /*max*/) {
  return kPlainKernels;
}

}  // namespace barestep
