// Matrix products on a GPU, with cuBLASLt or, where it was timed and is faster, with a kernel of
// ours for few rows. Bias and activation are part of the product if there is a kernel for them.
//
// Our tensors are row-major, cuBLASLt's column-major. A row-major matrix is the column-major view
// of its transpose, so c = op(a) op(b) is computed as c^T = op(b)^T op(a)^T, with the operands
// swapped and no data moved.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/addresses.h"
#include "core/config.h"
#include "core/ops.h"
#include "core/product_choices.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stream.h"

namespace barestep {

/// One of cuBLASLt's algorithms, or our kernel.
using ProductAlgorithm = std::variant<cublasLtMatmulAlgo_t, SkinnyProduct>;

struct ProductCandidate {
  ProductAlgorithm algorithm{};
  std::int64_t workspace_bytes = 0;
};

/// A product as passed to cuBLASLt: the descriptors of one shape; and the algorithm.
struct CudaProductPlan {
  OwnedMatmul matmul;
  OwnedLayout a, b, c;  // for our a, b and c; cuBLASLt gets b first
  ProductCandidate chosen;
  bool fused = true;  // includes the shape's bias and activation, if any
};

class CudaProduct {
 public:
  /// `config` gives the precision and the file of choices, which is read now and written after each
  /// new choice. Throws Error(kConfiguration) if the file is for another device, library or
  /// precision, or is damaged. `context` must outlive the product.
  CudaProduct(CudaContext& context, const std::string& model, const DeviceConfig& config,
              const KernelTarget& target);

  /// As Device::product_choices() and set_product_choices().
  [[nodiscard]] std::string choices() const;
  void set_choices(const std::string& text);

  /// "cuBLASLt 13.1.0", plus anything of it that could not or need not be used.
  [[nodiscard]] std::string name() const;

  /// Chooses the algorithm for ops of this shape and layout; if it is timed, then under a step's
  /// conditions: if `cached`, with its operands in the cache, where they are if all that a step
  /// uses fits there. Blocks; not allowed in a capture. Autotuning allocates operands for the
  /// measurement: Error(kMemory). Throws Error(kConfiguration) if the algorithm of another number
  /// of rows is required but cannot run.
  void prepare(const Gemm& op, bool cached);

  /// Queues. Returns the work left to the caller, if any: the activation, and the bias before it. A
  /// 16-bit bias is never left. `follows_kernel` as in KernelQueue, for a kernel of ours.
  std::optional<BiasActivation> run(const Gemm& op, const Addresses& addresses,
                                    CudaDeviceStream& stream, bool* follows_kernel);

  /// The same for quantized products, which are never timed: c = the int32 sums without scales.
  /// Returns false and queues nothing if cuBLASLt has no algorithm for the op's shape, or its
  /// tensors do not start at multiples of 256 bytes.
  void prepare(const QuantizedGemm& op);
  bool run(const QuantizedGemm& op, const Addresses& addresses, const CudaDeviceStream& stream);

  /// The kernel of ours that computes all of a prepared op, if it was chosen.
  [[nodiscard]] std::optional<SkinnyProduct> own(const Gemm& op) const;
  /// Whether our kernels round their factors to tf32.
  [[nodiscard]] bool rounds() const { return precision_ == Precision::kTf32; }

  /// Where choices are kept; null if nothing is timed.
  [[nodiscard]] ProductChoices* kept_choices() const { return choices_.get(); }
  /// Whether ways to compute work of so many flops are timed. With the choices of another device,
  /// only those with the same bits are.
  enum class Bits { kSame, kOther };
  [[nodiscard]] bool times(double flop, Bits bits) const {
    return choices_ != nullptr && flop >= tuned_flop_ && (bits == Bits::kSame || !are_given_);
  }
  /// Whether timing was not asked for, so that a run goes on without it if memory is short.
  [[nodiscard]] bool may_lack_memory() const { return is_cache_ || are_given_; }

 private:
  CudaProductPlan new_plan(const ProductShape& shape, bool fused);
  /// The heuristic's algorithms, best first; may be empty.
  std::vector<ProductCandidate> candidates(const ProductShape& shape, const CudaProductPlan& plan,
                                           int max_count);
  /// Appends our kernels that have room in the workspace.
  void add_own(const ProductShape& shape, std::vector<ProductCandidate>& offered) const;
  bool choose(const ProductShape& shape, CudaProductPlan& plan);
  /// Applies the stored choice, if there is one that runs. Throws Error(kConfiguration) if the
  /// choice is from another device or library.
  bool take_kept(const ProductShape& shape, CudaProductPlan& plan);
  /// Like choose(), but with the algorithm for rows_of_products rows.
  bool choose_for_rows(const ProductShape& shape, CudaProductPlan& plan);
  /// Applies the algorithm; false if it cannot run for this shape and its descriptors.
  bool take(const ProductAlgorithm& algorithm, const ProductShape& shape, CudaProductPlan& plan);
  void multiply(const Gemm& op, const Addresses& addresses, CudaDeviceStream& stream,
                const CudaProductPlan& plan, bool* follows_kernel);

  CudaContext& context_;
  KernelTarget target_;
  OwnedLt library_;
  Precision precision_;
  std::int64_t rows_of_products_;
  std::unique_ptr<ProductChoices> choices_;  // null: uses the library's first
  bool is_cache_ = false;                    // else a file named by the user
  bool are_given_ = false;                   // choices are those of another device or run
  double tuned_flop_;                        // from this size on, products are timed
  bool cached_ = false;                      // of the product being prepared
  std::map<ProductShape, CudaProductPlan> plans_;
  bool lacks_fused_ = false;
  bool uses_own_ = false;
};

}  // namespace barestep
