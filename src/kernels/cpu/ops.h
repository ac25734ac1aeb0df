// Executes device ops on the CPU.
#pragma once

#include "core/addresses.h"
#include "core/ops.h"
#include "kernels/cpu/packs.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector_kernels.h"

namespace barestep {

/// Owns neither the pool nor the product. Several threads may run ops at once: one of them gets the
/// pool, the others run their loops alone. Results do not depend on the number of threads, except
/// for products of the providers that say so.
class CpuOps {
 public:
  CpuOps(ThreadPool& pool, Product& product, Instructions most = Instructions::kAuto)
      : pool_(pool), product_(product), kernels_(vector_kernels(most)) {}

  /// All work that run() must not do. Call once for each op before its first run.
  void prepare(const DeviceOp& op);

  /// Blocks until the op is done; allocates nothing. The tensors that an op writes must not overlap
  /// its others, except for those it updates in place. Throws Error(kBadData) for a label that is
  /// not a valid class.
  void run(const DeviceOp& op, const Addresses& addresses);

 private:
  ThreadPool& pool_;
  Product& product_;
  const VectorKernels& kernels_;
  Packs packs_;  // of fused updates
};

}  // namespace barestep
