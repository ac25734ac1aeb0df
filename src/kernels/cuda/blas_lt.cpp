// Loads cuBLASLt at its first call: functions with its names forward calls to it. The linker finds
// these functions, so programs are not linked to the library itself.
//
// The library is half a gigabyte, and loading it takes several times as long as everything else
// that a program does before its first step. A CPU run, or one that refuses its command line, never
// calls it.
#include "kernels/cuda/blas_lt.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <array>

#include "core/error.h"
#include "core/shared_library.h"

namespace barestep {
namespace {

template <auto* kDeclared, class... Arguments>
auto forward(const char* name, Arguments... arguments) {
  // First the version that matches these headers; last the file that the build found.
  static void* const library = load_cublas_lt(std::array{
      fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), std::string(BARESTEP_CUBLAS_LT)});
  static auto* const call =
      reinterpret_cast<decltype(kDeclared)>(function_of_cublas_lt(library, name));
  return call(arguments...);
}

}  // namespace

void* load_cublas_lt(std::span<const std::string> files) {
  std::string why;
  void* const library = load_library(files, why);
  if (library != nullptr) return library;
  fail(
      ExitCode::kNoDevice,
      {"cuBLASLt", "", why, "install it, name its folder in LD_LIBRARY_PATH, or use --device cpu"});
}

void* function_of_cublas_lt(void* library, const char* name) {
  void* const function = function_of(library, name);
  if (function != nullptr) return function;
  fail(ExitCode::kNoDevice,
       {"cuBLASLt", "", fmt::format("the library that was found has no {}", name),
        "use that of the CUDA that barestep was built with, or --device cpu"});
}

}  // namespace barestep

using barestep::forward;

// NOLINTBEGIN(readability-identifier-naming): the library's names.

cublasStatus_t cublasLtCreate(cublasLtHandle_t* library) {
  return forward<cublasLtCreate>("cublasLtCreate", library);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t library) {
  return forward<cublasLtDestroy>("cublasLtDestroy", library);
}

size_t cublasLtGetVersion() {
  return forward<cublasLtGetVersion>("cublasLtGetVersion");
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  return forward<cublasLtGetStatusName>("cublasLtGetStatusName", status);
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return forward<cublasLtGetStatusString>("cublasLtGetStatusString", status);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* matmul, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return forward<cublasLtMatmulDescCreate>("cublasLtMatmulDescCreate", matmul, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmul) {
  return forward<cublasLtMatmulDescDestroy>("cublasLtMatmulDescDestroy", matmul);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmul,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  return forward<cublasLtMatmulDescSetAttribute>("cublasLtMatmulDescSetAttribute", matmul,
                                                 attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t stride) {
  return forward<cublasLtMatrixLayoutCreate>("cublasLtMatrixLayoutCreate", layout, type, rows, cols,
                                             stride);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return forward<cublasLtMatrixLayoutDestroy>("cublasLtMatrixLayoutDestroy", layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return forward<cublasLtMatmulPreferenceCreate>("cublasLtMatmulPreferenceCreate", preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return forward<cublasLtMatmulPreferenceDestroy>("cublasLtMatmulPreferenceDestroy", preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  return forward<cublasLtMatmulPreferenceSetAttribute>("cublasLtMatmulPreferenceSetAttribute",
                                                       preference, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t library, cublasLtMatmulDesc_t matmul,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int max_count,
                                              cublasLtMatmulHeuristicResult_t* found, int* count) {
  return forward<cublasLtMatmulAlgoGetHeuristic>("cublasLtMatmulAlgoGetHeuristic", library, matmul,
                                                 a, b, c, d, preference, max_count, found, count);
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t library, cublasLtMatmulDesc_t matmul,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  return forward<cublasLtMatmulAlgoCheck>("cublasLtMatmulAlgoCheck", library, matmul, a, b, c, d,
                                          algorithm, result);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t library, cublasLtMatmulDesc_t matmul,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  return forward<cublasLtMatmul>("cublasLtMatmul", library, matmul, alpha, a, a_layout, b, b_layout,
                                 beta, c, c_layout, d, d_layout, algorithm, workspace,
                                 workspace_bytes, stream);
}

// NOLINTEND(readability-identifier-naming)
