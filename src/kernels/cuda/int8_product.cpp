#include "kernels/cuda/int8_product.h"

#include <span>
#include <utility>

#include "core/device.h"
#include "core/error.h"

namespace barestep {

/// A row-major rows x cols matrix; cuBLASLt sees its transpose.
OwnedLayout CudaInt8Product::new_layout(cudaDataType type, std::int64_t rows, std::int64_t cols) {
  cublasLtMatrixLayout_t layout = nullptr;
  context_.require(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(cols),
                                              static_cast<std::uint64_t>(rows), cols),
                   "cublasLtMatrixLayoutCreate");
  return OwnedLayout(layout);
}

CudaInt8Product::Plan CudaInt8Product::new_plan(const Shape& shape) {
  Plan plan;
  cublasLtMatmulDesc_t matmul = nullptr;
  context_.require(cublasLtMatmulDescCreate(&matmul, CUBLAS_COMPUTE_32I, CUDA_R_32I),
                   "cublasLtMatmulDescCreate");
  plan.matmul.reset(matmul);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  context_.require(cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                                  sizeof(transposed)),
                   "cublasLtMatmulDescSetAttribute");
  plan.a = new_layout(CUDA_R_8I, shape.m, shape.k);
  plan.b = new_layout(CUDA_R_8I, shape.n, shape.k);
  plan.c = new_layout(CUDA_R_32I, shape.m, shape.n);
  return plan;
}

void CudaInt8Product::choose(Plan& plan) {
  cublasLtMatmulPreference_t made = nullptr;
  context_.require(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  const OwnedPreference preference(made);
  // Buffers start at multiples of 256 bytes, and so do tensors whose rows are multiples of four.
  const auto workspace = static_cast<std::uint64_t>(workspace_bytes(DeviceKind::kCuda));
  context_.require(
      cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                           &workspace, sizeof(workspace)),
      "cublasLtMatmulPreferenceSetAttribute");
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(library_.get(), plan.matmul.get(), plan.b.get(), plan.a.get(),
                                     plan.c.get(), plan.c.get(), made, 1, &result, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return;
  context_.require(status, "cublasLtMatmulAlgoGetHeuristic");
  plan.found = count == 1 && result.state == CUBLAS_STATUS_SUCCESS;
  plan.algorithm = result.algo;
}

std::optional<CudaInt8Product::Shape> CudaInt8Product::shape_of(const QuantizedGemm& op) {
  const Shape shape{op.c.rows, op.c.cols, op.a.cols};
  // Algorithms are chosen for addresses like those of buffers.
  const bool is_aligned =
      op.a.offset_bytes % 256 == 0 && op.b.offset_bytes % 256 == 0 && op.c.offset_bytes % 256 == 0;
  if (!is_aligned || shape.m == 0 || shape.n % 4 != 0 || shape.k % 4 != 0) return std::nullopt;
  return shape;
}

void CudaInt8Product::prepare(const QuantizedGemm& op) {
  BARESTEP_REQUIRE(!context_.capturing, "products are prepared before a capture");
  const std::optional<Shape> shape = shape_of(op);
  if (!shape || plans_.contains(*shape)) return;
  context_.use();
  if (library_ == nullptr) {
    cublasLtHandle_t library = nullptr;
    context_.require(cublasLtCreate(&library), "cublasLtCreate");
    library_.reset(library);
  }
  Plan plan = new_plan(*shape);
  choose(plan);
  plans_.emplace(*shape, std::move(plan));
}

bool CudaInt8Product::run(const QuantizedGemm& op, const Addresses& addresses,
                          const CudaDeviceStream& stream) {
  const std::optional<Shape> shape = shape_of(op);
  if (!shape) return false;
  const auto plan = plans_.find(*shape);
  if (plan == plans_.end() || !plan->second.found) return false;
  const Plan& found = plan->second;
  const std::span<std::byte> workspace = stream.workspace();
  const std::int32_t one = 1;
  const std::int32_t zero = 0;
  auto* const sums = addresses.at<std::byte>(op.c);
  context_.note(
      cublasLtMatmul(library_.get(), found.matmul.get(), &one, addresses.at<std::int8_t>(op.b),
                     found.b.get(), addresses.at<std::int8_t>(op.a), found.a.get(), &zero, sums,
                     found.c.get(), sums, found.c.get(), &found.algorithm, workspace.data(),
                     workspace.size(), stream.handle()),
      "cublasLtMatmul");
  return true;
}

}  // namespace barestep
