// Adam's step on a linear layer without storing its gradients.
#pragma once

#include <cstdint>

#include "core/addresses.h"
#include "core/ops.h"
#include "kernels/cpu/linear_adam_kernel.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/thread_pool.h"

namespace barestep {

/// A gradient's tile takes a quarter of a 1 MiB second-level cache. Narrower tiles were no faster,
/// and this width reads weights and moments in long runs.
constexpr std::int64_t kLinearAdamTileRows = 64;
constexpr std::int64_t kLinearAdamTileCols = 1024;

/// The product that gives the weight's gradient. It is never run as a whole: its c is the weight
/// itself.
Gemm weight_gradient_of(const LinearAdam& op);

/// In fp32, `kernel` updates strip by strip if it exists. Otherwise each task calls `product` for a
/// tile of the gradient, which stays in the second-level cache, and updates the weights of that
/// tile. Blocks; allocates nothing. The bits equal those of Gemm, SumRows and Adam if the kernel,
/// or the provider within a tile, sums in the same order as the provider does in the whole product.
void run_linear_adam(const LinearAdam& op, const Addresses& addresses, const Product& product,
                     const LinearAdamKernel& kernel, ThreadPool& pool);

}  // namespace barestep
