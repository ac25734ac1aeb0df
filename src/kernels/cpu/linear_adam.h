// A linear layer's step of Adam, whose gradients are never stored.
#pragma once

#include <cstdint>

#include "core/addresses.h"
#include "core/ops.h"
#include "kernels/cpu/linear_adam_kernel.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/thread_pool.h"

namespace barestep {

/// A gradient's tile takes a quarter of a second-level cache of 1 MiB. Beside it, narrower tiles
/// were no faster, and it follows weights and moments in long runs.
constexpr std::int64_t kLinearAdamTileRows = 64;
constexpr std::int64_t kLinearAdamTileCols = 1024;

/// The product that gives the weight's gradient. Nobody runs it whole: its c is the weight.
Gemm weight_gradient_of(const LinearAdam& op);

/// In fp32 by the kernel where there is one, strip by strip. Else each task has the product compute
/// a tile of the gradient, which stays in the second-level cache, and updates the weights under it.
/// Blocks; allocates nothing. Bits are those of Gemm, SumRows and Adam where the kernel, or the
/// provider in a tile, adds up numbers as the provider does in the whole product.
void run_linear_adam(const LinearAdam& op, const Addresses& addresses, const Product& product,
                     const LinearAdamKernel& kernel, ThreadPool& pool);

}  // namespace barestep
