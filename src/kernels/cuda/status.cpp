#include "kernels/cuda/status.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

#include "core/units.h"

namespace barestep {
namespace {

constexpr const char* kUseCpu = "use --device cpu";

bool is_one_of(cudaError_t status, std::initializer_list<cudaError_t> set) {
  return std::ranges::find(set, status) != set.end();
}

/// Whether hardware, driver or another program took the device away.
bool is_lost(cudaError_t status) {
  return is_one_of(
      status, {cudaErrorDevicesUnavailable, cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable,
               cudaErrorContained, cudaErrorLaunchTimeout, cudaErrorHardwareStackError,
               cudaErrorLaunchFailure, cudaErrorExternalDevice, cudaErrorMpsRpcFailure,
               cudaErrorMpsClientTerminated});
}

bool is_of_architecture(cudaError_t status) {
  return is_one_of(status, {cudaErrorNoKernelImageForDevice, cudaErrorInvalidKernelImage,
                            cudaErrorUnsupportedPtxVersion});
}

/// Whether this is an error of the driver or the machine, reported before any work.
bool is_of_driver(cudaError_t status) {
  return is_one_of(status, {cudaErrorInitializationError, cudaErrorStubLibrary,
                            cudaErrorCallRequiresNewerDriver, cudaErrorSystemNotReady,
                            cudaErrorSystemDriverMismatch, cudaErrorCompatNotSupportedOnDevice,
                            cudaErrorMpsConnectionFailed, cudaErrorMpsServerNotReady,
                            cudaErrorMpsMaxClientsReached, cudaErrorMpsMaxConnectionsReached});
}

/// "13.0" for 13000.
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string device_or_cuda(const CudaFacts& facts) {
  return facts.device.empty() ? "cuda" : facts.device;
}

std::string last_op_text(const CudaFacts& facts) {
  return facts.last_op.empty() ? "" : fmt::format(", the last op queued was {}", facts.last_op);
}

CudaFailure no_device(const CudaFacts& facts, std::string why, std::string remedy) {
  return {ExitCode::kNoDevice, {"device", device_or_cuda(facts), std::move(why), remedy}};
}

CudaFailure out_of_memory(const CudaFacts& facts) {
  std::string why;
  if (facts.requested_bytes > 0)
    why = fmt::format("{} asked for, ", human_bytes(facts.requested_bytes));
  why +=
      fmt::format("{} of {} free", human_bytes(facts.free_bytes), human_bytes(facts.total_bytes));
  if (facts.requested_bytes == 0) why += fmt::format(", {} needs more", facts.call);
  return {ExitCode::kMemory,
          {"memory of device", device_or_cuda(facts), std::move(why),
           "use a smaller --batch-size, --dim or --depth, or end other programs on it"}};
}

CudaFailure driver_missing_or_old(const CudaFacts& facts) {
  if (facts.driver_version == 0) {
    return no_device(facts, "no NVIDIA driver (libcuda.so.1 was not found)",
                     fmt::format("install one, or {}", kUseCpu));
  }
  return no_device(
      facts,
      fmt::format("the driver supports CUDA {}, this program needs {}",
                  version_text(facts.driver_version), version_text(facts.runtime_version)),
      fmt::format("update the driver, or {}", kUseCpu));
}

CudaFailure none_found(const CudaFacts& facts) {
  if (facts.visible_devices_set) {
    return no_device(
        facts,
        fmt::format("the driver shows no GPU, CUDA_VISIBLE_DEVICES is '{}'", facts.visible_devices),
        fmt::format("unset it, or {}", kUseCpu));
  }
  return no_device(facts, "the driver finds no GPU",
                   fmt::format("see what nvidia-smi says, or {}", kUseCpu));
}

CudaFailure wrong_architecture(const CudaFacts& facts) {
  return no_device(facts,
                   fmt::format("it is of architecture {}, this program was built for {}",
                               facts.architecture, facts.built_architectures),
                   fmt::format("configure with -DCMAKE_CUDA_ARCHITECTURES={}, or {}",
                               facts.architecture, kUseCpu));
}

}  // namespace

bool is_final(cudaError_t status) {
  return is_lost(status) ||
         is_one_of(status, {cudaErrorIllegalAddress, cudaErrorAssert, cudaErrorIllegalInstruction,
                            cudaErrorMisalignedAddress, cudaErrorInvalidAddressSpace,
                            cudaErrorInvalidPc, cudaErrorTensorMemoryLeak});
}

CudaFailure explain_status(cudaError_t status, const CudaFacts& facts) {
  const char* const name = cudaGetErrorName(status);
  if (status == cudaErrorMemoryAllocation) return out_of_memory(facts);
  if (status == cudaErrorInsufficientDriver) return driver_missing_or_old(facts);
  if (is_one_of(status, {cudaErrorNoDevice, cudaErrorInvalidDevice})) return none_found(facts);
  if (is_of_architecture(status)) return wrong_architecture(facts);
  if (is_of_driver(status)) {
    return no_device(facts, fmt::format("{} ({})", cudaGetErrorString(status), name),
                     fmt::format("see what nvidia-smi says, or {}", kUseCpu));
  }
  if (status == cudaErrorDevicesUnavailable && !facts.is_open) {
    return no_device(facts, fmt::format("in exclusive use by another program ({})", name),
                     fmt::format("end that program, or {}", kUseCpu));
  }
  if (is_lost(status)) {
    return {ExitCode::kTryAgain,
            {"device", device_or_cuda(facts),
             fmt::format("lost: {} ({}){}", cudaGetErrorString(status), name, last_op_text(facts)),
             "run again; the driver's reason is in the lines of dmesg with Xid"}};
  }
  return {ExitCode::kBug,
          {facts.call, name,
           fmt::format("{} on {}{}", cudaGetErrorString(status), device_or_cuda(facts),
                       last_op_text(facts)),
           "this is a bug, please report it"}};
}

CudaFailure explain_status(cublasStatus_t status, cudaError_t pending, const CudaFacts& facts) {
  if (pending != cudaSuccess) return explain_status(pending, facts);
  if (status == CUBLAS_STATUS_ALLOC_FAILED) return out_of_memory(facts);
  if (status == CUBLAS_STATUS_ARCH_MISMATCH) {
    return no_device(facts,
                     fmt::format("cuBLAS has no code for its architecture, {}", facts.architecture),
                     kUseCpu);
  }
  return {ExitCode::kBug,
          {facts.call, cublasLtGetStatusName(status),
           fmt::format("{} on {}{}", cublasLtGetStatusString(status), device_or_cuda(facts),
                       last_op_text(facts)),
           "this is a bug, please report it"}};
}

CudaFacts facts_of_process() {
  CudaFacts facts;
  // Without a driver, the call succeeds and returns 0.
  if (cudaDriverGetVersion(&facts.driver_version) != cudaSuccess) facts.driver_version = 0;
  facts.runtime_version = CUDART_VERSION;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  facts.visible_devices_set = visible != nullptr;
  if (visible != nullptr) facts.visible_devices = visible;
  facts.built_architectures = BARESTEP_CUDA_ARCHITECTURES;
  return facts;
}

}  // namespace barestep
