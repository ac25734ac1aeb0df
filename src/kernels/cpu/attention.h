// Attention on the CPU.
#pragma once

#include "core/addresses.h"
#include "core/ops.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector_kernels.h"

namespace barestep {

/// Block; allocate nothing; the same bits for any number of threads. Each thread needs up to 1 MiB
/// of its stack.
void run_attention(const Attention& op, const Addresses& addresses, const VectorKernels& kernel,
                   ThreadPool& pool);
void run_attention_grad(const AttentionGrad& op, const Addresses& addresses,
                        const VectorKernels& kernel, ThreadPool& pool);

}  // namespace barestep
