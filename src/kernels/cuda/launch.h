// Queues our own CUDA kernels: one call for every op that no library computes.
//
// Sums have a fixed order that depends on shapes and geometry alone, so a run repeats to the bit.
// Numbers of elements may exceed 2^31.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/addresses.h"
#include "core/ops.h"
#include "core/philox.h"

struct CUstream_st;

namespace barestep {

using CudaStream = CUstream_st*;

/// The scratch that launch() needs; the same for every op.
constexpr std::int64_t kLaunchWorkspaceBytes = 1024 * 8;

/// Where kernels are queued. With `follows_kernel` a kernel is launched ahead of the end of the one
/// before it where that is one of ours too, which `*follows_kernel` says of the stream's last work;
/// launches set it. Without, each kernel is launched after everything queued before it.
struct KernelQueue {
  CudaStream stream = nullptr;
  bool* follows_kernel = nullptr;
};

/// What a GPU offers to kernels.
struct KernelTarget {
  CudaGeometry geometry;
  std::int64_t block_shared_bytes = 227 * 1024;  // that a launch may ask for
  bool tf32 = false;    // tensor cores may compute products, as exactly as in fp32
  bool shares = false;  // with another stream: a fused update takes a block a multiprocessor
  bool* follows_kernel = nullptr;  // see KernelQueue
};

/// Queues the op on `stream`; blocks never, allocates nothing, can be captured. Not for Gemm and
/// Copy (Error(kBug)). Tensors may lie anywhere the device can reach.
///
/// `workspace` is kLaunchWorkspaceBytes of device memory, aligned to 16 bytes. Only what `stream`
/// runs may use it; its content need not survive between ops, so a product may share it.
///
/// Returns the CUDA error (cudaError_t) of the first launch that failed, and 0 where none did.
///
/// A label that is no class makes the loss NaN and its row of the gradient NaN, and counts as
/// wrong in CountCorrect: a kernel cannot throw, and NaN ends a run (kDiverged).
[[nodiscard]] int launch(const DeviceOp& op, const Addresses& addresses, std::byte* workspace,
                         const KernelTarget& target, CudaStream stream);

/// Queues; as launch(), for an op whose c holds the sums of products of a and b, as int32.
[[nodiscard]] int launch_dequantize(const QuantizedGemm& op, const Addresses& addresses,
                                    const CudaGeometry& geometry, CudaStream stream);

/// Queues; as launch(), for Generator::kTorchCuda. It is in a separate source, which is
/// compiled otherwise: cuRAND's uniform numbers have PyTorch's bits only where nvcc may fuse
/// multiply-adds, our own formulas only where not.
[[nodiscard]] int launch_randn(const Randn& op, const Addresses& addresses,
                               const CudaGeometry& geometry, const KernelQueue& queue);

}  // namespace barestep
