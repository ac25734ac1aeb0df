// Owning handles of CUDA and cuBLAS: a unique_ptr each. They own nothing at first and never throw.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <type_traits>

namespace barestep {

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
