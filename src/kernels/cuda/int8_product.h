// Products of int8 matrices on a GPU with cuBLASLt, for QuantizedGemm.
//
// cuBLASLt multiplies signed bytes into int32 if both operands have the summed dimension last, as
// ours do, and if that dimension and the number of outputs are multiples of four.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>

#include "core/addresses.h"
#include "core/ops.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stream.h"

namespace barestep {

class CudaInt8Product {
 public:
  /// `context` must outlive the product.
  explicit CudaInt8Product(CudaContext& context) : context_(context) {}

  /// Asks cuBLASLt for an algorithm for ops of this shape. Blocks; not allowed in a capture.
  void prepare(const QuantizedGemm& op);

  /// Queues: c = the int32 sums of products of a and b without scales. Returns false and queues
  /// nothing if cuBLASLt has no algorithm for the op's shape, or its tensors do not start at
  /// multiples of 256 bytes.
  bool run(const QuantizedGemm& op, const Addresses& addresses, const CudaDeviceStream& stream);

 private:
  struct Shape {
    std::int64_t m, n, k;
    friend auto operator<=>(const Shape&, const Shape&) = default;
  };
  struct Plan {
    OwnedMatmul matmul;
    OwnedLayout a, b, c;  // for our a, b and c; cuBLASLt gets b first
    cublasLtMatmulAlgo_t algorithm{};
    bool found = false;
  };

  /// Nothing if cuBLASLt does not multiply such shapes, or tensors at such offsets.
  [[nodiscard]] static std::optional<Shape> shape_of(const QuantizedGemm& op);
  [[nodiscard]] OwnedLayout new_layout(cudaDataType type, std::int64_t rows, std::int64_t cols);
  [[nodiscard]] Plan new_plan(const Shape& shape);
  void choose(Plan& plan);

  CudaContext& context_;
  OwnedLt library_;  // created for the first product
  std::map<Shape, Plan> plans_;
};

}  // namespace barestep
