// PyTorch's CUDA randn. It stands apart because it is compiled otherwise: cuRAND's uniform numbers
// have PyTorch's bits only where nvcc may fuse multiply-adds, our own formulas only where not.
#pragma once

#include "kernels/cuda/launch.h"

namespace barestep {

/// Queues; as launch(), for Generator::kTorchCuda.
[[nodiscard]] int launch_randn(const Randn& op, const Addresses& addresses,
                               const CudaGeometry& geometry, CudaStream stream);

}  // namespace barestep
