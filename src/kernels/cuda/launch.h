// Queues our own CUDA kernels: one call for every op that no library computes.
//
// Sums have a fixed order that depends only on shapes and geometry, so a run repeats bit for bit.
// Arrays may have more than 2^31 elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/addresses.h"
#include "core/ops.h"
#include "core/philox.h"
#include "core/product_choices.h"

struct CUstream_st;

namespace barestep {

using CudaStream = CUstream_st*;

/// The workspace that launch() needs; the same for every op.
constexpr std::int64_t kLaunchWorkspaceBytes = 1024 * 8;

/// How many groups of blocks a kernel may count.
constexpr std::int64_t kLaunchCounts = 1024;

/// Device memory for kernels that sum over a whole grid. Only work on one stream may use it.
struct LaunchMemory {
  /// kLaunchWorkspaceBytes, for a product what it asks for, aligned to 16 bytes. Its contents need
  /// not survive between ops.
  std::byte* workspace = nullptr;
  /// How many blocks of each group of the running kernel have finished: kLaunchCounts of them, 0
  /// before the first launch, and again after every launch. Most kernels have one group.
  unsigned* finished_blocks = nullptr;
};

/// A queue for kernels. With `follows_kernel`, a kernel is launched before the previous one ends if
/// that is one of ours too. `*follows_kernel` is true if the stream's last work is such a kernel;
/// launches set it. If null, each kernel starts after everything queued before it.
struct KernelQueue {
  CudaStream stream = nullptr;
  bool* follows_kernel = nullptr;
};

/// The tiles of a fused update, and what a block keeps in shared memory; the bits are the same.
enum class UpdateTiles {
  kUsual,    // x, if the batch has up to 128 rows; it is read again for every tile if it has more
  kTall,     // the same, but tiles have twice as many rows
  kKeeping,  // x of up to 256 rows, in fp32 by a block that has a multiprocessor to itself
};

/// The properties of a GPU that launches depend on.
struct KernelTarget {
  CudaGeometry geometry;
  std::int64_t block_shared_bytes = 227 * 1024;  // the most that a launch may request
  // Fused updates multiply on tensor cores: 16-bit factors exactly, fp32 ones as exactly as fp32.
  bool tensor_cores = false;
  bool has_tf32 = false;                    // whether its tensor cores multiply tf32
  UpdateTiles tiles = UpdateTiles::kUsual;  // of fused updates, where there are such
  bool* follows_kernel = nullptr;           // see KernelQueue
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

/// The tiles that are worth timing beside the usual ones.
[[nodiscard]] std::vector<UpdateTiles> other_tiles(const LinearAdam& op,
                                                   const KernelTarget& target);

/// How many of these ops, the first ones, one launch may compute with the same bits: updates of
/// small layers by the same optimizer.
[[nodiscard]] std::size_t updates_of_one_launch(std::span<const DeviceOp* const> ops,
                                                const KernelTarget& target);
/// Queues them, as launch().
[[nodiscard]] int launch_updates(std::span<const DeviceOp* const> ops, const Addresses& addresses,
                                 const KernelTarget& target, const KernelQueue& queue);

/// How a product of few rows is computed by a kernel of ours: its depth is cut into `splits` parts,
/// which different blocks sum up.
struct SkinnyProduct {
  int splits = 1;

  friend bool operator==(const SkinnyProduct&, const SkinnyProduct&) = default;
};

/// The ways to compute such a product that are worth timing on this GPU; none if it has too many
/// rows, another layout, results of another type than its factors, factors whose addresses or rows
/// are not multiples of 16 bytes, or if the GPU lacks tensor cores for tf32 or shared memory.
[[nodiscard]] std::vector<SkinnyProduct> skinny_products(const ProductShape& shape,
                                                         const KernelTarget& target);
/// Whether the kernel can compute it in this way, which may have been chosen on another GPU.
[[nodiscard]] bool can_run(const SkinnyProduct& product, const ProductShape& shape,
                           const KernelTarget& target);
/// The workspace that launch_skinny() needs.
[[nodiscard]] std::int64_t workspace_bytes_of(const SkinnyProduct& product,
                                              const ProductShape& shape);

/// Queues, as launch(). `rounded`: fp32 factors are rounded to tf32; otherwise the product is as
/// exact as one in fp32. 16-bit sums are rounded once. With the same splits, the bits of a row do
/// not depend on the number of rows, nor on the GPU. The same launch computes `next`, if given,
/// with the bits of a launch after it; only a loss, a sum in double, has another order.
[[nodiscard]] int launch_skinny(const Gemm& op, const SkinnyProduct& product, bool rounded,
                                const Addresses& addresses, const LaunchMemory& memory,
                                const KernelQueue& queue, const DeviceOp* next = nullptr);
/// Whether `next` may be one that follows the product: the gradient of a ReLU that produced c's
/// place, without its sums, or a loss of c with its gradient; a cross-entropy only where a tile of
/// c has whole rows, of fewer than 128 classes.
[[nodiscard]] bool skinny_includes(const Gemm& op, const DeviceOp& next);

/// Whether kernels for tensor cores compute it too: in the flash form, for heads whose rows fill
/// accesses of 16 bytes, up to 256 bytes, on a GPU with tensor cores for tf32 and shared memory
/// enough.
[[nodiscard]] bool runs_on_tensor_cores(const Attention& op, const KernelTarget& target);
[[nodiscard]] bool runs_on_tensor_cores(const AttentionGrad& op, const KernelTarget& target);

/// Queues, as launch(). `rounded` as for launch_skinny(); 16-bit numbers are exact factors. A row's
/// bits do not depend on the number of sequences, nor on the GPU.
[[nodiscard]] int launch_on_tensor_cores(const Attention& op, bool rounded,
                                         const Addresses& addresses, const KernelQueue& queue);
[[nodiscard]] int launch_on_tensor_cores(const AttentionGrad& op, bool rounded,
                                         const Addresses& addresses, const KernelQueue& queue);

/// Queues, as launch(), for Generator::kTorchCuda. It is in a separate source with other compiler
/// options: cuRAND's uniform numbers match PyTorch's bits only if nvcc may fuse multiply-adds, our
/// own formulas only if it may not.
[[nodiscard]] int launch_randn(const Randn& op, const Addresses& addresses,
                               const CudaGeometry& geometry, const KernelQueue& queue);

}  // namespace barestep
