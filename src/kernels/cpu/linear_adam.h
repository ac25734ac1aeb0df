// Adam's step on a linear layer without storing its gradients.
#pragma once

#include <cstdint>

#include "core/addresses.h"
#include "core/ops.h"
#include "kernels/cpu/packs.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector_kernels.h"

namespace barestep {

/// A gradient's tile takes a quarter of a 1 MiB second-level cache. Narrower tiles were no faster,
/// and this width reads weights and moments in long runs.
constexpr std::int64_t kLinearAdamTileRows = 64;
constexpr std::int64_t kLinearAdamTileCols = 1024;

/// The product that gives the weight's gradient. It is never run as a whole: its c is the weight
/// itself.
Gemm weight_gradient_of(const LinearAdam& op);

/// All that run_linear_adam() must not do. Call under the conditions of Product::prepare().
void prepare_linear_adam(const LinearAdam& op, Product& product, const VectorKernels& kernels,
                         Packs& packs, const ThreadPool& pool);

/// Blocks; allocates nothing. In fp32, the kernels update strip by strip, with the bits of
/// make_own_product(), SumRows and Adam. With 16 bits, each task calls `product` for a tile of the
/// gradient, which stays in the second-level cache, and updates the weights of that tile; the bits
/// are those of separate ops if the provider sums within a tile as in the whole product.
void run_linear_adam(const LinearAdam& op, const Addresses& addresses, const Product& product,
                     const VectorKernels& kernels, Packs& packs, ThreadPool& pool);

}  // namespace barestep
