// Products of int8 matrices on a GPU by cuBLASLt: what QuantizedGemm is made of.
//
// cuBLASLt multiplies bytes with signs into int32 where both operands have the summed dimension
// last, as ours have, and where it and the outputs are multiples of four.
#pragma once

#include <compare>
#include <cstdint>
#include <map>

#include "core/addresses.h"
#include "core/ops.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stream.h"

namespace barestep {

class CudaInt8Product {
 public:
  /// `context` must outlive the product.
  explicit CudaInt8Product(CudaContext& context) : context_(context) {}

  /// Asks for an algorithm for ops of this shape. Blocks; not in a capture.
  void prepare(const QuantizedGemm& op);

  /// Queues: c = the int32 sums of products of a and b as they are. False where cuBLASLt has no
  /// algorithm for the shape, and nothing is queued.
  bool run(const QuantizedGemm& op, const Addresses& addresses, const CudaDeviceStream& stream);

 private:
  struct Shape {
    std::int64_t m, n, k;
    friend auto operator<=>(const Shape&, const Shape&) = default;
  };
  struct Plan {
    OwnedMatmul matmul;
    OwnedLayout a, b, c;  // of our names: cuBLASLt gets b first
    cublasLtMatmulAlgo_t algorithm{};
    bool found = false;
  };

  [[nodiscard]] OwnedLayout new_layout(cudaDataType type, std::int64_t rows, std::int64_t cols);
  [[nodiscard]] Plan new_plan(const Shape& shape);
  void choose(Plan& plan);

  CudaContext& context_;
  OwnedLt library_;  // made for the first product
  std::map<Shape, Plan> plans_;
};

}  // namespace barestep
