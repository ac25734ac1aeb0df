// What a return code of CUDA or cuBLAS means to a user: one line and an exit code.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "core/error.h"

namespace barestep {

/// What is known where a call failed. Empty and 0 mean: not known, or not asked.
struct CudaFacts {
  std::string call;                  // "cudaMalloc"
  std::string device;                // "cuda:0"
  bool is_open = false;              // the device was in use before this call
  std::string last_op;               // "gemm of 64x1024, 1024x1024, 64x1024"
  std::int64_t asked_bytes = 0;      // of an allocation
  std::int64_t free_bytes = 0;       // device memory
  std::int64_t total_bytes = 0;      // device memory
  int driver_version = 0;            // cudaDriverGetVersion(); 0: there is no driver
  int runtime_version = 0;           // of this build, as 13000
  std::string visible_devices;       // CUDA_VISIBLE_DEVICES
  bool visible_devices_set = false;  // it may be set and empty
  int architecture = 0;              // of the device, as 90
  std::string built_architectures;   // what the kernels of this build are for, as "75, 90"
};

/// A failure before it is thrown: a reason why there is no GPU can be shown without failing.
struct CudaFailure {
  ExitCode code;
  Problem problem;
};

/// Pure. `status` is not cudaSuccess.
CudaFailure explain_status(cudaError_t status, const CudaFacts& facts);

/// Pure. `status` is not CUBLAS_STATUS_SUCCESS. `pending` is the CUDA error that caused it, if
/// there is one, and is then explained instead.
CudaFailure explain_status(cublasStatus_t status, cudaError_t pending, const CudaFacts& facts);

/// True for errors after which every call of the process fails: the first one is the cause.
bool is_final(cudaError_t status);

/// What can be asked without an open device: versions, environment, architectures of the build.
CudaFacts facts_of_process();

// Owning handles of CUDA and cuBLAS: a unique_ptr each. They own nothing at first and never throw.

/// Destroying can fail only after a device was lost, which was reported then.
template <auto kDestroy>
struct DestroyWith {
  template <class T>
  void operator()(T* handle) const noexcept {
    static_cast<void>(kDestroy(handle));
  }
};

template <class Handle, auto kDestroy>
using OwnedHandle = std::unique_ptr<std::remove_pointer_t<Handle>, DestroyWith<kDestroy>>;

using OwnedStream = OwnedHandle<cudaStream_t, cudaStreamDestroy>;
using OwnedEvent = OwnedHandle<cudaEvent_t, cudaEventDestroy>;
using OwnedGraph = OwnedHandle<cudaGraph_t, cudaGraphDestroy>;
using OwnedGraphExec = OwnedHandle<cudaGraphExec_t, cudaGraphExecDestroy>;
using OwnedDeviceMemory = OwnedHandle<std::byte*, cudaFree>;
using OwnedLt = OwnedHandle<cublasLtHandle_t, cublasLtDestroy>;
using OwnedMatmul = OwnedHandle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using OwnedLayout = OwnedHandle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using OwnedPreference = OwnedHandle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

}  // namespace barestep
