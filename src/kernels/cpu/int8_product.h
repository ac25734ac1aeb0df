// Products of int8 matrices on the CPU, and the quantization that precedes them.
//
// Integer sums are exact, so every kernel gives the same bits; the plain loop is the reference for
// the others.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/addresses.h"
#include "core/ops.h"
#include "kernels/cpu/thread_pool.h"

namespace barestep {

/// Rows of a and rows of b, each of `depth` numbers, stored contiguously.
struct Int8Tile {
  const std::int8_t* a;
  const std::int8_t* b;
  std::int64_t depth;
  std::int64_t rows, cols;  // cols: rows of b
};

/// The stride between rows of sums.
constexpr std::int64_t kInt8TileCols = 64;
constexpr std::int64_t kInt8TileRows = 64;

/// sums[i * kInt8TileCols + j] = sum over k of (a[i][k] + offset) * b[j][k], for a tile of at most
/// kInt8TileRows x kInt8TileCols sums. The numbers of `a` have the number of bits that the kernel
/// was requested for.
struct Int8Kernel {
  std::string_view name;
  void (*sum)(const Int8Tile& tile, std::int32_t* sums);
  std::int32_t offset;
};

/// The instructions that a kernel may use.
enum class Int8Isa { kPlain, kAvx2, kVnni };

/// The fastest kernel for activations of `bits` bits that this CPU can run, limited to `max`.
/// AVX-512 VNNI multiplies bytes exactly. AVX2 adds pairs of products in 16 bits, which overflow
/// for two 8-bit factors. So with AVX2 activations need 7 bits; the plain loop handles 8.
Int8Kernel int8_kernel(int bits, Int8Isa max = Int8Isa::kVnni);

/// The kernels for this build's processor type; `sum` is null if this machine cannot run them.
Int8Kernel vnni_kernel(int bits);
Int8Kernel avx2_kernel();

/// Each blocks until the op is done and allocates nothing. Results do not depend on the number of
/// threads.
void run_quantize_weight(const QuantizeWeight& op, const Addresses& addresses, ThreadPool& pool);
void run_quantize(const Quantize& op, const Addresses& addresses, ThreadPool& pool);
void run_quantized_gemm(const QuantizedGemm& op, const Addresses& addresses,
                        const Int8Kernel& kernel, ThreadPool& pool);

}  // namespace barestep
