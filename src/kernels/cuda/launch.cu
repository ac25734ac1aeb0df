#include <variant>

#include "kernels/cuda/clock.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launcher.cuh"

namespace barestep {
namespace {

__global__ void spin(std::uint64_t duration_ns, const float* more_seconds) {
  begin_kernel();
  const std::uint64_t begin = clock_ns();
  if (more_seconds != nullptr && *more_seconds > 0) {
    duration_ns += static_cast<std::uint64_t>(1e9 * *more_seconds);
  }
  while (clock_ns() - begin < duration_ns) {
  }
}

}  // namespace

cudaError_t Launcher::operator()(const Randn& op) const {
  return static_cast<cudaError_t>(launch_randn(op, addresses, geometry, queue));
}

cudaError_t Launcher::operator()(const Delay& op) const {
  const float* const more = op.more_seconds ? addresses.at(*op.more_seconds) : nullptr;
  return start(queue, dim3(1), dim3(1), spin, static_cast<std::uint64_t>(op.seconds * 1e9), more);
}

int kernel_architecture() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, spin) == cudaSuccess) return attributes.ptxVersion;
  static_cast<void>(cudaGetLastError());
  return 0;
}

int launch(const DeviceOp& op, const Addresses& addresses, const LaunchMemory& memory,
           const KernelTarget& target, CudaStream stream) {
  return std::visit(Launcher{addresses, memory, target, KernelQueue{stream, target.follows_kernel}},
                    op);
}

}  // namespace barestep
