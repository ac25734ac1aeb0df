// The seam between the CPU device and what computes its matrix products.
//
// The pool splits a product into tiles of c; a provider computes one tile on one thread.
#pragma once

#include <memory>
#include <string_view>

#include "core/addresses.h"
#include "core/config.h"
#include "core/ops.h"
#include "kernels/cpu/int8_product.h"
#include "kernels/cpu/linear_adam_kernel.h"
#include "kernels/cpu/product_tiles.h"
#include "kernels/cpu/thread_pool.h"

namespace barestep {

class Product {
 public:
  virtual ~Product() = default;

  /// "oneDNN 2.6.3", "OpenBLAS 0.3.21 Haswell", "reference"; for tables and reports.
  [[nodiscard]] virtual std::string_view name() const = 0;

  /// Whether it computes products of operands of this type; else run_widened() does.
  [[nodiscard]] virtual bool takes(DType type) const { return type == DType::kF32; }

  /// Everything run() must not do; the operands are of a type that it takes. Call once for each op
  /// before its first run, with the pool it will get, while nothing runs. Blocks.
  virtual void prepare(const Gemm& op, const ThreadPool& pool) = 0;

  /// Everything multiply() must not do. Call as prepare().
  virtual void prepare_tiles(const ThreadPool& /*pool*/) {}

  /// Computes a tile on the calling thread, which may be any thread of a pool, after
  /// prepare_tiles(). k is at least 1. False when the library failed.
  [[nodiscard]] virtual bool multiply(const TileProduct& tile) const noexcept = 0;

  /// What sums up products in int8 beside this provider, for activations of so many bits.
  [[nodiscard]] virtual Int8Kernel int8(int bits) const { return int8_kernel(bits); }

  /// What makes weight gradients and updates weights at once; null where the sums must be this
  /// provider's own.
  [[nodiscard]] virtual LinearAdamKernel linear_adam() const { return {}; }

  /// Computes the whole op, with its bias, beta and activation; blocks. Any extent may be 0: with
  /// k = 0 an element is bias or beta * c. c must not overlap the other tensors.
  virtual void run(const Gemm& op, const Addresses& addresses, ThreadPool& pool) = 0;
};

/// What Product::run() does, of operands of 16 bits: they are widened to fp32 tile by tile, in
/// caches, and multiplied as tiles. After prepare_tiles().
void run_widened(const Product& product, const Gemm& op, const Addresses& addresses,
                 ThreadPool& pool);

/// sums (tile.rows x tile.cols, dense) = the tile of op(a) op(b), in fp32; on the calling thread,
/// after prepare_tiles(). The tile has at most kMostTileRows rows and kMostTileCols columns. False
/// when the library failed.
[[nodiscard]] bool multiply_tile(const Product& product, const Gemm& op, const Addresses& addresses,
                                 const Tile& tile, float* sums) noexcept;
constexpr std::int64_t kMostTileRows = 128;
constexpr std::int64_t kMostTileCols = 1024;

/// kAuto takes the fastest provider of this build. Throws Error(kConfiguration) when the build has
/// not the one asked for.
std::unique_ptr<Product> make_product(GemmProvider provider);

/// Plain loops; numbers are added in the order of k. The oracle of the others, and the only one
/// that every build has. Results do not depend on the number of threads.
std::unique_ptr<Product> make_reference_product();

/// oneDNN, or null in a build without it. Each thread computes a tile of c; results may differ in
/// the last bits between numbers of threads.
///
/// Memory outside the plan: for every thread a tile of a forward product's output, in all at most
/// 128 rows a thread of the widest layer, and oneDNN's scratchpad, about a quarter of that with
/// the shapes of the baseline model. Both are taken in prepare().
std::unique_ptr<Product> make_onednn_product();

/// OpenBLAS, or null in a build without it. With one thread each product is one library call with
/// the arguments PyTorch gives, so results have PyTorch's bits; with several, each computes a tile
/// of c and results may differ in the last bits.
std::unique_ptr<Product> make_cblas_product();

/// Ends the threads that OpenBLAS starts when the program is loaded, whether it is used or not: the
/// pool splits products. Does nothing in a build without it.
void stop_cblas_threads();

// Tells ThreadSanitizer what a library touches.
//
// The sanitizer sees accesses of code that was compiled with it, so a race inside a library goes
// unnoticed unless the caller announces the ranges. Without the sanitizer these do nothing.

/// `rows` rows of `bytes` bytes, `stride` bytes apart, are read here, or written.
void announce_read(const void* first, std::int64_t rows, std::int64_t bytes, std::int64_t stride);
void announce_write(const void* first, std::int64_t rows, std::int64_t bytes, std::int64_t stride);

}  // namespace barestep
