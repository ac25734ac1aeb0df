// Products of int8 matrices on the CPU, and the quantization that precedes them.
//
// Integer sums are exact, so both kernels give the same bits; the plain loop is the reference for
// the fast one.
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

/// The kernel for activations of `bits` bits: AVX-512 VNNI's where this machine has it, else the
/// plain loop.
Int8Kernel int8_kernel(int bits);
Int8Kernel plain_int8_kernel();

/// `sum` is null if this machine cannot run it.
Int8Kernel vnni_kernel(int bits);

/// Each blocks until the op is done and allocates nothing. Results do not depend on the number of
/// threads.
void run_quantize_weight(const QuantizeWeight& op, const Addresses& addresses, ThreadPool& pool);
void run_quantize(const Quantize& op, const Addresses& addresses, ThreadPool& pool);
void run_quantized_gemm(const QuantizedGemm& op, const Addresses& addresses, bool by_plain_loops,
                        ThreadPool& pool);

}  // namespace barestep
