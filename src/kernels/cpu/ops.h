// Executes device ops on the CPU; among them a linear layer's step of Adam whose gradients are
// never stored.
#pragma once

#include <cstdint>

#include "core/addresses.h"
#include "core/ops.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/thread_pool.h"

namespace barestep {

/// A gradient's tile takes a quarter of a second-level cache of 1 MiB. Beside it, narrower tiles
/// were no faster, and it follows weights and moments in long runs.
constexpr std::int64_t kLinearAdamTileRows = 64;
constexpr std::int64_t kLinearAdamTileCols = 1024;

/// Each task computes a tile of the gradient, which stays in the second-level cache, and updates
/// the weights under it; whoever has a tile of the first column updates the biases beside it too.
/// Blocks; allocates nothing. Bits are those of Gemm, SumRows and Adam where the provider adds up a
/// tile's numbers as it does those of larger ones.
void run_linear_adam(const LinearAdam& op, const Addresses& addresses, const Product& product,
                     ThreadPool& pool);

/// Owns neither the pool nor the product. Several threads may run ops at once: one of them gets the
/// pool, the others run their loops alone. No result depends on the number of threads, except for
/// those of products that say so.
class CpuOps {
 public:
  CpuOps(ThreadPool& pool, Product& product) : pool_(pool), product_(product) {}

  /// Everything run() must not do. Call once for each op before its first run.
  void prepare(const DeviceOp& op);

  /// Blocks until the op is done; allocates nothing. The tensors an op writes must not overlap its
  /// others, except for those it updates in place. Throws Error(kBadData) for a label that is no
  /// class.
  void run(const DeviceOp& op, const Addresses& addresses);

 private:
  ThreadPool& pool_;
  Product& product_;
};

}  // namespace barestep
