// Queues our own CUDA kernels: one call for every op that no library computes.
//
// Sums have a fixed order that depends only on shapes and geometry, so a run repeats bit for bit.
// Arrays may have more than 2^31 elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/addresses.h"
#include "core/ops.h"
#include "core/philox.h"

struct CUstream_st;

namespace barestep {

using CudaStream = CUstream_st*;

/// The workspace that launch() needs; the same for every op.
constexpr std::int64_t kLaunchWorkspaceBytes = 1024 * 8;

/// Device memory for kernels that sum over a whole grid. Only work on one stream may use it.
struct LaunchMemory {
  /// kLaunchWorkspaceBytes, aligned to 16 bytes. Its contents need not survive between ops, so a
  /// product may share it.
  std::byte* workspace = nullptr;
  /// How many blocks of the running kernel have finished: 0 before the first launch, and again
  /// after every launch.
  unsigned* finished_blocks = nullptr;
};

/// A queue for kernels. With `follows_kernel`, a kernel is launched before the previous one ends if
/// that is one of ours too. `*follows_kernel` is true if the stream's last work is such a kernel;
/// launches set it. If null, each kernel starts after everything queued before it.
struct KernelQueue {
  CudaStream stream = nullptr;
  bool* follows_kernel = nullptr;
};

/// The properties of a GPU that launches depend on.
struct KernelTarget {
  CudaGeometry geometry;
  std::int64_t block_shared_bytes = 227 * 1024;  // the most that a launch may request
  // Fused updates multiply on tensor cores: 16-bit factors exactly, fp32 ones as exactly as fp32.
  bool tensor_cores = false;
  bool* follows_kernel = nullptr;  // see KernelQueue
};

/// The architecture that the code of our kernels for the calling thread's device was compiled for,
/// for example 90; 0 if there is none.
[[nodiscard]] int kernel_architecture();

/// Queues the op on `stream`. Never blocks, allocates nothing, can be captured. Not for Gemm and
/// Copy (Error(kBug)). Tensors may be anywhere the device can reach.
///
/// Returns the CUDA error (cudaError_t) of the first launch that failed, or 0 if none did.
///
/// A label that is not a valid class makes the loss and its row of the gradient NaN, and counts as
/// wrong in CountCorrect. A kernel cannot throw, but NaN ends the run (kDiverged).
[[nodiscard]] int launch(const DeviceOp& op, const Addresses& addresses, const LaunchMemory& memory,
                         const KernelTarget& target, CudaStream stream);

/// Queues, as launch(), the rest of an op whose c holds the int32 sums of products of a and b.
[[nodiscard]] int launch_dequantize(const QuantizedGemm& op, const Addresses& addresses,
                                    const CudaGeometry& geometry, CudaStream stream);

/// Queues, as launch(), for Generator::kTorchCuda. It is in a separate source with other compiler
/// options: cuRAND's uniform numbers match PyTorch's bits only if nvcc may fuse multiply-adds, our
/// own formulas only if it may not.
[[nodiscard]] int launch_randn(const Randn& op, const Addresses& addresses,
                               const CudaGeometry& geometry, const KernelQueue& queue);

}  // namespace barestep
