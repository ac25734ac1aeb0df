// Loads cuBLASLt at its first call: functions with its names forward calls to it. The linker finds
// these functions, so programs are not linked to the library itself.
//
// The library is half a gigabyte, and loading it takes several times as long as everything else
// that a program does before its first step. A CPU run, or one that refuses its command line, never
// calls it.
#include "kernels/cuda/blas_lt.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

#include "core/error.h"

namespace barestep {
namespace {

template <class Function>
Function* loaded_function(Function* /*ours*/, const char* name) {
  // First the version that matches these headers; last the file that the build found.
  static void* const library = load_cublas_lt(std::array{
      fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), std::string(BARESTEP_CUBLAS_LT)});
  return reinterpret_cast<Function*>(function_of_cublas_lt(library, name));
}

}  // namespace

void* load_cublas_lt(std::span<const std::string> files) {
  std::string why;
  for (const std::string& file : files) {
    void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return library;
    // Reports the error of the first, which is the expected file.
    const char* const error = ::dlerror();
    if (why.empty()) why = error != nullptr ? error : file + " cannot be loaded";
  }
  fail(
      ExitCode::kNoDevice,
      {"cuBLASLt", "", why, "install it, name its folder in LD_LIBRARY_PATH, or use --device cpu"});
}

void* function_of_cublas_lt(void* library, const char* name) {
  void* const function = ::dlsym(library, name);
  if (function != nullptr) return function;
  fail(ExitCode::kNoDevice,
       {"cuBLASLt", "", fmt::format("the library that was found has no {}", name),
        "use that of the CUDA that barestep was built with, or --device cpu"});
}

}  // namespace barestep

using barestep::loaded_function;

// NOLINTBEGIN(readability-identifier-naming): the library's names.

cublasStatus_t cublasLtCreate(cublasLtHandle_t* library) {
  static auto* const call = loaded_function(cublasLtCreate, "cublasLtCreate");
  return call(library);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t library) {
  static auto* const call = loaded_function(cublasLtDestroy, "cublasLtDestroy");
  return call(library);
}

size_t cublasLtGetVersion() {
  static auto* const call = loaded_function(cublasLtGetVersion, "cublasLtGetVersion");
  return call();
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  static auto* const call = loaded_function(cublasLtGetStatusName, "cublasLtGetStatusName");
  return call(status);
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  static auto* const call = loaded_function(cublasLtGetStatusString, "cublasLtGetStatusString");
  return call(status);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* matmul, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  static auto* const call = loaded_function(cublasLtMatmulDescCreate, "cublasLtMatmulDescCreate");
  return call(matmul, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmul) {
  static auto* const call = loaded_function(cublasLtMatmulDescDestroy, "cublasLtMatmulDescDestroy");
  return call(matmul);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmul,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  static auto* const call =
      loaded_function(cublasLtMatmulDescSetAttribute, "cublasLtMatmulDescSetAttribute");
  return call(matmul, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t stride) {
  static auto* const call =
      loaded_function(cublasLtMatrixLayoutCreate, "cublasLtMatrixLayoutCreate");
  return call(layout, type, rows, cols, stride);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  static auto* const call =
      loaded_function(cublasLtMatrixLayoutDestroy, "cublasLtMatrixLayoutDestroy");
  return call(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  static auto* const call =
      loaded_function(cublasLtMatmulPreferenceCreate, "cublasLtMatmulPreferenceCreate");
  return call(preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  static auto* const call =
      loaded_function(cublasLtMatmulPreferenceDestroy, "cublasLtMatmulPreferenceDestroy");
  return call(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  static auto* const call =
      loaded_function(cublasLtMatmulPreferenceSetAttribute, "cublasLtMatmulPreferenceSetAttribute");
  return call(preference, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t library, cublasLtMatmulDesc_t matmul,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int max_count,
                                              cublasLtMatmulHeuristicResult_t* found, int* count) {
  static auto* const call =
      loaded_function(cublasLtMatmulAlgoGetHeuristic, "cublasLtMatmulAlgoGetHeuristic");
  return call(library, matmul, a, b, c, d, preference, max_count, found, count);
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t library, cublasLtMatmulDesc_t matmul,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  static auto* const call = loaded_function(cublasLtMatmulAlgoCheck, "cublasLtMatmulAlgoCheck");
  return call(library, matmul, a, b, c, d, algorithm, result);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t library, cublasLtMatmulDesc_t matmul,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  static auto* const call = loaded_function(cublasLtMatmul, "cublasLtMatmul");
  return call(library, matmul, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
              algorithm, workspace, workspace_bytes, stream);
}

// NOLINTEND(readability-identifier-naming)
