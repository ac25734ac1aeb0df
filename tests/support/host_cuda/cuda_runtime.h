// Replaces CUDA's header when kernels are compiled for the host. Defines only the parts of CUDA
// that src/kernels/cuda/ use.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "support/host_cuda.h"

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __grid_constant__
// One section, so the harness can find all shared variables. A function with shared memory has
// internal linkage, because g++ does not mix it with other functions' variables in a section.
#define __shared__ __attribute__((section("host_cuda_shared"))) static

inline const host_cuda::Index& threadIdx = host_cuda::place.thread;
inline const host_cuda::Index& blockIdx = host_cuda::place.block;
inline const host_cuda::Index& blockDim = host_cuda::place.block_size;
inline const host_cuda::Index& gridDim = host_cuda::place.grid_size;

#define __syncthreads() ::host_cuda::synchronize_threads()
#define __threadfence() ::host_cuda::fence()
#define atomicInc(number, max) ::host_cuda::count_up(number, max)
#define __shfl_xor_sync(lanes, value, mask) \
  ::host_cuda::shuffle(::host_cuda::Shuffle::kXor, lanes, value, mask)
#define __shfl_down_sync(lanes, value, delta) \
  ::host_cuda::shuffle(::host_cuda::Shuffle::kDown, lanes, value, delta)
#define __shfl_sync(lanes, value, lane) \
  ::host_cuda::shuffle(::host_cuda::Shuffle::kLane, lanes, value, lane)

struct dim3 : host_cuda::Index {
  constexpr dim3(unsigned x_size = 1, unsigned y_size = 1, unsigned z_size = 1)
      : Index{x_size, y_size, z_size} {}
};

struct alignas(8) uint2 {
  unsigned x, y;
};

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

template <class T>
T __ldcs(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T>
void __stcs(T* to, const T& value) {
  *to = value;
}
template <class T>
void __stwb(T* to, const T& value) {
  *to = value;
}

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9
};

/// The limits of an H200: per multiprocessor, per block with a larger request, and per block
/// without one. Each block takes kBlockReserve in addition to its request.
inline constexpr std::size_t kSharedOfMultiprocessor = std::size_t{228} * 1024;
inline constexpr std::size_t kMaxDynamicShared = std::size_t{227} * 1024;
inline constexpr std::size_t kUsualDynamicShared = std::size_t{48} * 1024;
inline constexpr std::size_t kBlockReserve = 1024;

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
inline constexpr int cudaSharedmemCarveoutMaxShared = 100;

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute which,
                                 int value) {
  if (which == cudaFuncAttributePreferredSharedMemoryCarveout) {
    if (value < -1 || value > 100) return cudaErrorInvalidValue;
    host_cuda::machine().carveout = value;
    return cudaSuccess;
  }
  if (value < 0 || static_cast<std::size_t>(value) > kMaxDynamicShared) {
    return cudaErrorInvalidValue;
  }
  host_cuda::allow_shared(reinterpret_cast<const void*>(kernel), static_cast<std::size_t>(value));
  return cudaSuccess;
}

struct cudaFuncAttributes {
  int ptxVersion = 0;
};

template <class... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*)(Parameters...)) {
  attributes->ptxVersion = host_cuda::machine().code_architecture;
  return attributes->ptxVersion == 0 ? cudaErrorInvalidValue : cudaSuccess;
}

/// Kernels of the host leave no error behind.
#define cudaGetLastError() cudaSuccess

template <class... Parameters>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*)(Parameters...),
                                                          int threads, std::size_t shared_bytes) {
  constexpr int kThreads = 2048;
  *blocks = std::min(kThreads / threads,
                     static_cast<int>(kSharedOfMultiprocessor / (shared_bytes + kBlockReserve)));
  return cudaSuccess;
}

struct CUstream_st;
using cudaStream_t = CUstream_st*;

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

/// Runs the kernel immediately, or passes it to the queue. Refuses what a GPU refuses.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const dim3& grid = config->gridDim;
  const dim3& block = config->blockDim;
  constexpr unsigned kMaxThreads = 1024;
  constexpr unsigned kMaxBlocks = 65535;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  host_cuda::count_launch(threads * grid.x * grid.y * grid.z);
  if (threads == 0 || threads > kMaxThreads || block.z > 64) return cudaErrorInvalidConfiguration;
  if (grid.x == 0 || grid.x > INT32_MAX || grid.y == 0 || grid.y > kMaxBlocks || grid.z == 0 ||
      grid.z > kMaxBlocks) {
    return cudaErrorInvalidConfiguration;
  }
  const auto* const id = reinterpret_cast<const void*>(kernel);
  if (config->dynamicSmemBytes > std::max(kUsualDynamicShared, host_cuda::allowed_shared(id))) {
    return cudaErrorInvalidValue;
  }
  const bool ahead =
      config->numAttrs > 0 && config->attrs->val.programmaticStreamSerializationAllowed != 0;
  const auto begin = ahead ? host_cuda::Begin::kAhead : host_cuda::Begin::kByWaiting;
  return static_cast<cudaError_t>(host_cuda::queue(
      config->stream,
      [kernel, grid, block, shared_bytes = config->dynamicSmemBytes, begin, arguments...] {
        host_cuda::run(
            grid, block, shared_bytes, [&] { kernel(arguments...); }, begin);
      },
      ahead));
}

inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return static_cast<cudaError_t>(host_cuda::queue(stream, [=] { std::memset(to, value, bytes); }));
}
