// Times the algorithms cuBLASLt offers for a product.
#pragma once

#include <cstddef>
#include <span>

#include "core/product_choices.h"
#include "kernels/cuda/product.h"

namespace barestep {

/// The index of the fastest candidate, timed as a step meets it: with none of its operands in the
/// cache. `plan` has the descriptors of `shape`; its bias pointer changes. Allocates operands and
/// frees them again: Error(kMemory). Throws Error(kBug) when no candidate runs. Blocks.
std::size_t fastest_of(std::span<const cublasLtMatmulHeuristicResult_t> candidates,
                       const ProductShape& shape, const CudaProductPlan& plan,
                       cublasLtHandle_t library, CudaContext& context);

}  // namespace barestep
