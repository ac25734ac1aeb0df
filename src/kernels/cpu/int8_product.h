// Products of int8 matrices on the CPU, and the quantisation before them.
//
// A sum of whole numbers is exact, so every kernel gives the same bits; the plain loop is the
// oracle of the others.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/addresses.h"
#include "core/ops.h"
#include "kernels/cpu/thread_pool.h"

namespace barestep {

/// Rows of a and rows of b, all `depth` numbers long and one after the other.
struct Int8Tile {
  const std::int8_t* a;
  const std::int8_t* b;
  std::int64_t depth;
  std::int64_t rows, cols;  // cols: rows of b
};

/// Where one sum of a row begins the next row of them.
constexpr std::int64_t kInt8TileCols = 64;
constexpr std::int64_t kInt8TileRows = 64;

/// sums[i * kInt8TileCols + j] = sum over k of (a[i][k] + offset) * b[j][k], for a tile of at most
/// kInt8TileRows x kInt8TileCols sums and numbers of `a` of so many bits as it was asked for.
struct Int8Kernel {
  std::string_view name;
  void (*sum)(const Int8Tile& tile, std::int32_t* sums);
  std::int32_t offset;
};

/// What instructions a kernel may use.
enum class Int8Isa { kPlain, kAvx2, kVnni };

/// The fastest kernel for activations of so many bits that this CPU runs, by `most` and less.
/// AVX-512 VNNI multiplies bytes exactly. AVX2 adds pairs of products in 16 bits, where those of 8
/// bits by 8 do not fit: there activations have 7, or the plain loop takes them.
Int8Kernel int8_kernel(int bits, Int8Isa most = Int8Isa::kVnni);

/// The kernels of this build's processor; a null `sum` where it has none that runs here.
Int8Kernel vnni_kernel(int bits);
Int8Kernel avx2_kernel();

/// Each blocks until the op is done; allocates nothing. Results do not depend on the number of
/// threads.
void run_quantize_weight(const QuantizeWeight& op, const Addresses& addresses, ThreadPool& pool);
void run_quantize(const Quantize& op, const Addresses& addresses, ThreadPool& pool);
void run_quantized_gemm(const QuantizedGemm& op, const Addresses& addresses,
                        const Int8Kernel& kernel, ThreadPool& pool);

}  // namespace barestep
