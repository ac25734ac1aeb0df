// Matrix products on a GPU by cuBLASLt, with bias and activation inside where cuBLASLt has a kernel
// for that.
//
// Our tensors are row-major, cuBLASLt's column-major: a row-major matrix is the column-major view
// of its transpose, so c = op(a) op(b) is computed as c^T = op(b)^T op(a)^T, operands swapped, no
// number moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/addresses.h"
#include "core/config.h"
#include "core/ops.h"
#include "core/product_choices.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stream.h"

namespace barestep {

/// A product as cuBLASLt is asked for it: the descriptors of one shape, and who computes it.
struct CudaProductPlan {
  OwnedMatmul matmul;
  OwnedLayout a, b, c;  // of our names: cuBLASLt gets b first
  cublasLtMatmulAlgo_t algorithm{};
  std::int64_t workspace_bytes = 0;
  bool fused = true;  // bias and activation, if the shape has them, are inside
};

class CudaProduct {
 public:
  /// `config` gives the precision and where choices are kept: read now, written when there is a new
  /// one. Throws Error(kConfiguration) when the file is of another device,
  /// library or precision, or is damaged. `context` must outlive the product.
  CudaProduct(CudaContext& context, const std::string& model, const DeviceConfig& config);

  /// As Device::product_choices() and set_product_choices().
  [[nodiscard]] std::string choices() const;
  void set_choices(const std::string& text);

  /// "cuBLASLt 13.1.0", and what of it could not be used.
  [[nodiscard]] std::string name() const;

  /// Chooses the algorithm for ops of this shape and layout. Blocks; not in a capture. With
  /// autotuning it allocates operands for the time of the measurement: Error(kMemory). Throws
  /// Error(kConfiguration) where the algorithm of other rows is asked for and does not run.
  void prepare(const Gemm& op);

  /// Queues. Returns what is left to the caller, if anything is: the activation, and before it the
  /// bias, which of 16 bits is never left.
  std::optional<BiasActivation> run(const Gemm& op, const Addresses& addresses,
                                    const CudaDeviceStream& stream);

 private:
  CudaProductPlan new_plan(const ProductShape& shape, bool fused);
  /// The heuristic's algorithms, best first; empty when there is none.
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(const ProductShape& shape,
                                                          const CudaProductPlan& plan, int wanted);
  bool choose(const ProductShape& shape, CudaProductPlan& plan);
  /// The choice kept for it, if it runs. Throws Error(kConfiguration) where it was not made here.
  bool take_kept(const ProductShape& shape, CudaProductPlan& plan);
  /// Whether to time its algorithms.
  [[nodiscard]] bool times(const ProductShape& shape) const;
  /// The same as choose(), by the algorithm for rows_of_products rows.
  bool choose_for_rows(const ProductShape& shape, CudaProductPlan& plan);
  /// Takes the algorithm; false when it does not run for these descriptors.
  bool take(const cublasLtMatmulAlgo_t& algorithm, CudaProductPlan& plan);
  void multiply(const Gemm& op, const Addresses& addresses, const CudaDeviceStream& stream,
                const CudaProductPlan& plan);

  CudaContext& context_;
  OwnedLt library_;
  Precision precision_;
  std::int64_t rows_of_products_;
  std::unique_ptr<ProductChoices> choices_;  // null: the library's first
  bool is_cache_ = false;                    // not a file that somebody named
  double tuned_flop_;                        // from which products are timed
  std::map<ProductShape, CudaProductPlan> plans_;
  bool lacks_fused_ = false;
};

/// The index of the fastest candidate, timed as a step meets it: with none of its operands in the
/// cache. `plan` has the descriptors of `shape`; its bias pointer changes. Allocates operands and
/// frees them again: Error(kMemory). Throws Error(kBug) when no candidate runs. Blocks.
std::size_t fastest_of(std::span<const cublasLtMatmulHeuristicResult_t> candidates,
                       const ProductShape& shape, const CudaProductPlan& plan,
                       cublasLtHandle_t library, CudaContext& context);

}  // namespace barestep
