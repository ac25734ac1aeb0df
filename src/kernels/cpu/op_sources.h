// Ops of the CPU that have sources of their own. Each blocks until the op is done, allocates
// nothing, and gives the same bits for any number of threads.
#pragma once

#include "core/addresses.h"
#include "core/ops.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector_kernels.h"

namespace barestep {

/// Each thread needs up to 1 MiB of its stack.
void run_attention(const Attention& op, const Addresses& addresses, const VectorKernels& kernel,
                   ThreadPool& pool);
void run_attention_grad(const AttentionGrad& op, const Addresses& addresses,
                        const VectorKernels& kernel, ThreadPool& pool);

void run_quantize_weight(const QuantizeWeight& op, const Addresses& addresses, ThreadPool& pool);
void run_quantize(const Quantize& op, const Addresses& addresses, ThreadPool& pool);
void run_quantized_gemm(const QuantizedGemm& op, const Addresses& addresses, bool by_plain_loops,
                        ThreadPool& pool);

}  // namespace barestep
