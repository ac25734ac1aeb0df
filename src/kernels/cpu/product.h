// The interface between the CPU device and the libraries that compute its matrix products.
//
// The pool splits a product into tiles of c; a provider computes one tile on one thread.
#pragma once

#include <memory>
#include <string_view>

#include "core/addresses.h"
#include "core/config.h"
#include "core/ops.h"
#include "kernels/cpu/product_tiles.h"
#include "kernels/cpu/thread_pool.h"

namespace barestep {

/// Whether the product is nothing but sums: nothing is added to them, and there is no activation.
inline bool is_sum(const Gemm& op) {
  return !op.bias && op.activation == Activation::kNone && op.beta == 0;
}

class Product {
 public:
  virtual ~Product() = default;

  /// "barestep", "oneDNN 2.6.3", "OpenBLAS 0.3.21 Haswell", "plain loops"; for tables and reports.
  [[nodiscard]] virtual std::string_view name() const = 0;

  /// Whether it computes products of operands of this type; if not, run_tiles() does.
  [[nodiscard]] virtual bool takes(DType type) const { return type == DType::kF32; }

  /// All work that run() must not do; the operands have a type for which takes() is true. Call once
  /// for each op before its first run, with the pool that run() will get, while nothing runs.
  /// Blocks.
  virtual void prepare(const Gemm& op, const ThreadPool& pool) = 0;

  /// All work that multiply() must not do. Call under the same conditions as prepare().
  virtual void prepare_tiles(const ThreadPool& /*pool*/) {}

  /// Computes a tile on the calling thread, which may be any thread of a pool, after
  /// prepare_tiles(). k is at least 1, and beta 0 or 1: with 1, our own products go on with the
  /// chains in c. Returns false if the library failed.
  [[nodiscard]] virtual bool multiply(const TileProduct& tile) const noexcept = 0;

  /// Whether plain loops are asked for, as the reference of any faster kernel.
  [[nodiscard]] virtual bool is_reference() const { return false; }

  /// Computes the whole op, with its bias, beta and activation; blocks. Any extent may be 0; with
  /// k = 0, an element is its bias or beta * c. c must not overlap the other tensors.
  virtual void run(const Gemm& op, const Addresses& addresses, ThreadPool& pool) = 0;
};

/// Product::run() by tiles: those of 16-bit operands are widened to fp32 in the caches. Call after
/// prepare_tiles().
void run_tiles(const Product& product, const Gemm& op, const Addresses& addresses,
               ThreadPool& pool);

/// sums (tile.rows x tile.cols, dense) = the tile of op(a) op(b), in fp32, on the calling thread.
/// Call after prepare_tiles(). The tile has at most kMaxTileRows rows and kMaxTileCols columns.
/// Returns false if the library failed.
[[nodiscard]] bool multiply_tile(const Product& product, const Gemm& op, const Addresses& addresses,
                                 const Tile& tile, float* sums) noexcept;
constexpr std::int64_t kMaxTileRows = 128;
constexpr std::int64_t kMaxTileCols = 1024;

/// kAuto is kOwn, or oneDNN for bf16 where library and processor compute with it. Throws
/// Error(kConfiguration) if the build lacks the requested one.
std::unique_ptr<Product> make_product(GemmProvider provider, Precision precision = Precision::kFp32,
                                      Instructions most = Instructions::kAuto);

/// Products of our own. Every number of c is one chain of fused multiply-adds in the order of k,
/// beginning with 0; what its beta, or its bias, asks for is added to the finished sum. So it has
/// the bits of make_reference_product() with any instructions, number of threads, and number of
/// rows beside a row.
///
/// Memory outside the plan: twice the activations and gradients of the largest layer, for packed
/// operands.
std::unique_ptr<Product> make_own_product(Instructions most = Instructions::kAuto);

/// The same chains in plain loops: the reference for the others.
std::unique_ptr<Product> make_reference_product();

/// oneDNN, or null in a build without it. Each thread computes a tile of c, so results may differ
/// in the last bits between numbers of threads.
///
/// Memory outside the plan: for every thread, a tile of a forward product's output, at most 128
/// rows per thread of the widest layer in total; and oneDNN's scratchpad, about a quarter of that
/// at the shapes of the baseline model. Both are allocated in prepare().
std::unique_ptr<Product> make_onednn_product();

/// OpenBLAS, loaded by the first call; null in a build, or on a machine, without it. With one
/// thread, each product is one library call with PyTorch's arguments, so results are bit-identical
/// to PyTorch's. With several threads, each computes a tile of c, and results may differ in the
/// last bits.
std::unique_ptr<Product> make_cblas_product();

// Announces to ThreadSanitizer the memory that a library accesses.
//
// The sanitizer sees only accesses in code compiled with it, so a race inside a library goes
// unnoticed unless the caller announces the ranges. Without the sanitizer, these functions do
// nothing.

/// A library reads, or writes, `rows` rows of `bytes` bytes, `stride` bytes apart.
void announce_read(const void* first, std::int64_t rows, std::int64_t bytes, std::int64_t stride);
void announce_write(const void* first, std::int64_t rows, std::int64_t bytes, std::int64_t stride);

}  // namespace barestep
