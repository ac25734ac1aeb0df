// Launching our kernels, and dividing work among their threads.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "core/philox.h"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/launch.h"

namespace barestep {

constexpr int kBlockThreads = 256;
constexpr int kWarpThreads = 32;
constexpr unsigned kAllLanes = 0xffffffffU;
constexpr int kBlockWarps = kBlockThreads / kWarpThreads;

inline std::int64_t tiles(std::int64_t extent, std::int64_t of) {
  return extent / of + (extent % of != 0 ? 1 : 0);
}

/// Blocks of kBlockThreads for the work of n threads: up to four times as many as the GPU holds, so
/// that it is busy to the end. Threads loop over the rest, one grid's width apart.
inline int blocks_for(std::int64_t n, const CudaGeometry& geometry) {
  const int resident =
      geometry.multiprocessors * std::max(1, geometry.threads_per_multiprocessor / kBlockThreads);
  const std::int64_t needed = n / kBlockThreads + (n % kBlockThreads != 0 ? 1 : 0);
  return static_cast<int>(std::min(needed, std::int64_t{4} * resident));
}

/// The only function that launches kernels. Launches nothing if the grid is empty.
template <class... Parameters, class... Arguments>
cudaError_t start_sharing(const KernelQueue& queue, dim3 grid, dim3 block, std::size_t shared_bytes,
                          void (*kernel)(Parameters...), Arguments... arguments) {
  if (grid.x == 0 || grid.y == 0) return cudaSuccess;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = queue.stream;
  cudaLaunchAttribute ahead{};
  if (queue.follows_kernel != nullptr && *queue.follows_kernel) {
    ahead.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    ahead.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &ahead;
    config.numAttrs = 1;
  }
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (queue.follows_kernel != nullptr) *queue.follows_kernel = status == cudaSuccess;
  return status;
}

template <class... Parameters, class... Arguments>
cudaError_t start(const KernelQueue& queue, dim3 grid, dim3 block, void (*kernel)(Parameters...),
                  Arguments... arguments) {
  return start_sharing(queue, grid, block, 0, kernel, arguments...);
}

/// Lets a kernel request this much dynamic shared memory. As many blocks as fit find room beside
/// each other only in the largest carve-out.
template <class... Parameters>
cudaError_t allow_shared(void (*kernel)(Parameters...), std::size_t shared_bytes) {
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (status != cudaSuccess) return status;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

/// Launches as many blocks of kBlockThreads as the GPU holds at once, at most `max`, each with
/// `shared_bytes` of dynamic shared memory; they divide the work. Their number is a multiple of
/// `multiple` if that costs at most a sixteenth of them.
template <class... Parameters, class... Arguments>
cudaError_t start_persistent(const KernelQueue& queue, const CudaGeometry& geometry,
                             std::int64_t max, std::int64_t multiple, std::size_t shared_bytes,
                             void (*kernel)(Parameters...), Arguments... arguments) {
  std::int64_t blocks = max;
  if (shared_bytes > 0) {
    const cudaError_t status = allow_shared(kernel, shared_bytes);
    if (status != cudaSuccess) return status;
  }
  if (max > geometry.multiprocessors) {  // otherwise all fit
    int resident = 0;                    // per multiprocessor
    const cudaError_t status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &resident, kernel, kBlockThreads, shared_bytes);
    if (status != cudaSuccess) return status;
    blocks = std::min(max, std::int64_t{geometry.multiprocessors} * std::max(1, resident));
  }
  if (const std::int64_t rest = blocks % multiple; 16 * rest <= blocks) blocks -= rest;
  return start_sharing(queue, dim3(static_cast<unsigned>(blocks)), dim3(kBlockThreads),
                       shared_bytes, kernel, arguments...);
}

template <class... Parameters, class... Arguments>
cudaError_t start(const KernelQueue& queue, int blocks, void (*kernel)(Parameters...),
                  Arguments... arguments) {
  return start(queue, dim3(static_cast<unsigned>(blocks)), dim3(kBlockThreads), kernel,
               arguments...);
}

/// This thread's number, and the number of threads, in a one-dimensional grid.
__device__ inline std::int64_t grid_thread() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t grid_threads() {
  return std::int64_t{gridDim.x} * blockDim.x;
}

__device__ inline int block_thread() {
  return static_cast<int>(threadIdx.x);
}
__device__ inline int warp_of_block() {
  return block_thread() / kWarpThreads;
}
__device__ inline int lane_of_warp() {
  return block_thread() % kWarpThreads;
}

/// Calls use(row, lane) for every row, with one warp per row.
template <class Use>
__device__ void each_row_by_a_warp(std::int64_t rows, const Use& use) {
  const std::int64_t warps = grid_threads() / kWarpThreads;
  for (std::int64_t row = grid_thread() / kWarpThreads; row < rows; row += warps) {
    use(row, static_cast<std::int64_t>(threadIdx.x % kWarpThreads));
  }
}

}  // namespace barestep
