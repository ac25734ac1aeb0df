#include <curand_kernel.h>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/launch.h"

namespace barestep {
namespace {

/// PyTorch's distribution_nullary_kernel, four numbers per draw: thread t draws subsequence t, and
/// the numbers of a draw are one grid's width apart.
__global__ void __launch_bounds__(kPhiloxThreads)
    randn(float* out, std::int64_t n, const PhiloxState* state) {
  begin_kernel();
  curandStatePhilox4_32_10_t stream;
  curand_init(state->seed, static_cast<unsigned long long>(grid_thread()), state->offset, &stream);
  const std::int64_t threads = grid_threads();
  for (std::int64_t i = grid_thread(); i < n; i += 4 * threads) {
    const float4 normals = curand_normal4(&stream);
    out[i] = normals.x;
    if (i + threads < n) out[i + threads] = normals.y;
    if (i + 2 * threads < n) out[i + 2 * threads] = normals.z;
    if (i + 3 * threads < n) out[i + 3 * threads] = normals.w;
  }
}

/// Queued after randn on the same stream, when no thread reads the offset any more.
__global__ void advance(PhiloxState* state, std::uint64_t words) {
  begin_kernel();
  state->offset += words;
}

}  // namespace

int launch_randn(const Randn& op, const Addresses& addresses, const CudaGeometry& geometry,
                 const KernelQueue& queue) {
  BARESTEP_REQUIRE(op.generator == Generator::kTorchCuda, "MT19937 runs on the CPU only");
  static_assert(kPhiloxThreads == kBlockThreads);
  const std::int64_t n = op.out.size();
  auto* state = addresses.at<PhiloxState>(op.state);
  const auto blocks = static_cast<int>(philox_blocks(n, geometry));
  const cudaError_t error = start(queue, blocks, randn, addresses.at(op.out), n, state);
  if (error != cudaSuccess || n == 0) return error;
  return start(queue, dim3(1), dim3(1), advance, state, philox_advance(n, geometry));
}

}  // namespace barestep
