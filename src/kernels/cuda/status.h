// Turns return codes of CUDA and cuBLAS into messages for users: one line and an exit code.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "core/error.h"

namespace barestep {

/// The known circumstances of a failed call. Empty and 0 mean unknown.
struct CudaFacts {
  std::string call;                  // "cudaMalloc"
  std::string device;                // "cuda:0"
  bool is_open = false;              // the device worked before this call
  std::string last_op;               // "gemm of 64x1024, 1024x1024, 64x1024"
  std::int64_t requested_bytes = 0;  // size of a failed allocation
  std::int64_t free_bytes = 0;       // device memory
  std::int64_t total_bytes = 0;      // device memory
  int driver_version = 0;            // cudaDriverGetVersion(); 0 without a driver
  int runtime_version = 0;           // the build's, as 13000
  std::string visible_devices;       // CUDA_VISIBLE_DEVICES
  bool visible_devices_set = false;  // it may be set but empty
  int architecture = 0;              // the device's, as 90
  std::string built_architectures;   // of this build's kernels, as "75, 90"
};

/// A failure before it is thrown, since the reason for a missing GPU can be shown without failing.
struct CudaFailure {
  ExitCode code;
  Problem problem;
};

/// Has no side effects. `status` is not cudaSuccess.
CudaFailure explain_status(cudaError_t status, const CudaFacts& facts);

/// Has no side effects. `status` is not CUBLAS_STATUS_SUCCESS. If a CUDA error caused it, that is
/// `pending`, and is explained instead.
CudaFailure explain_status(cublasStatus_t status, cudaError_t pending, const CudaFacts& facts);

/// True for errors after which every call of the process fails; the first such error is the cause.
bool is_final(cudaError_t status);

/// The facts available without an open device: versions, environment, architectures of the build.
CudaFacts facts_of_process();

// Owning handles for CUDA and cuBLAS, each a unique_ptr. They start empty and never throw.

/// Destroying can fail only after a device was lost, which has already been reported.
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
