// GPUs as sources of the monitor, through NVIDIA's management library (NVML), which is part of the
// driver and is loaded on demand.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "profiler/monitor.h"

namespace barestep {

// NVML's functions, found in its library at run time. Names, types and numbers are those of nvml.h,
// an interface that NVIDIA keeps stable across drivers.

using NvmlDevice = struct nvmlDevice_st*;

struct NvmlUtilization {  // nvmlUtilization_t
  unsigned gpu = 0;       // percent
  unsigned memory = 0;
};

struct NvmlMemory {  // nvmlMemory_t
  unsigned long long total = 0;
  unsigned long long free = 0;
  unsigned long long used = 0;
};

/// nvmlReturn_t
constexpr int kNvmlSuccess = 0;
constexpr int kNvmlUninitialized = 1;
constexpr int kNvmlNotSupported = 3;
constexpr int kNvmlNoPermission = 4;
constexpr int kNvmlInsufficientSize = 7;
constexpr int kNvmlGpuIsLost = 15;
constexpr int kNvmlResetRequired = 16;

constexpr int kNvmlOnGpu = 0;        // NVML_TEMPERATURE_GPU
constexpr int kNvmlSmClock = 1;      // NVML_CLOCK_SM
constexpr int kNvmlMemoryClock = 2;  // NVML_CLOCK_MEM

template <class Function>
struct NvmlCall {
  const char* name;
  Function* function = nullptr;  // null if this driver lacks it
};

/// Loaded and initialized; shut down when the last user releases it.
class NvmlLibrary {
 public:
  /// Null if it cannot be loaded, with the reason in `why`.
  static std::shared_ptr<const NvmlLibrary> load(const std::string& file, std::string& why);
  ~NvmlLibrary();
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  /// NVML's text for a return code.
  [[nodiscard]] std::string text_of(int status) const;

  NvmlCall<int(const char*, NvmlDevice*)> device{"nvmlDeviceGetHandleByPciBusId_v2"};
  NvmlCall<int(NvmlDevice, NvmlUtilization*)> utilization{"nvmlDeviceGetUtilizationRates"};
  NvmlCall<int(NvmlDevice, NvmlMemory*)> memory{"nvmlDeviceGetMemoryInfo"};
  NvmlCall<int(NvmlDevice, unsigned*)> power{"nvmlDeviceGetPowerUsage"};  // mW
  NvmlCall<int(NvmlDevice, unsigned long long*)> energy{
      "nvmlDeviceGetTotalEnergyConsumption"};  // mJ
  NvmlCall<int(NvmlDevice, int, unsigned*)> temperature{"nvmlDeviceGetTemperature"};
  NvmlCall<int(NvmlDevice, int, unsigned*)> clock{"nvmlDeviceGetClockInfo"};  // MHz
  NvmlCall<int(NvmlDevice, unsigned long long*)> throttle_reasons{
      "nvmlDeviceGetCurrentClocksThrottleReasons"};
  /// Returns the count, and as many processes as fit.
  NvmlCall<int(NvmlDevice, unsigned*, void*)> compute_processes{
      "nvmlDeviceGetComputeRunningProcesses_v3"};

 private:
  explicit NvmlLibrary(void* handle) : handle_(handle) {}

  void* handle_;
  NvmlCall<int()> init_{"nvmlInit_v2"};
  NvmlCall<int()> shutdown_{"nvmlShutdown"};
  NvmlCall<const char*(int)> error_string_{"nvmlErrorString"};
  bool initialized_ = false;
};

struct GpuPlace {
  std::string name;        // "cuda:0"
  std::string pci_bus_id;  // "00000000:17:00.0": NVML and CUDA number GPUs differently
};

struct GpuSources {
  std::vector<std::unique_ptr<MonitorSource>> sources;
  std::vector<std::string> notes;  // one per GPU that cannot be monitored, or one for all
};

/// The library's file: the value of BARESTEP_NVML, or the driver's libnvidia-ml.so.1.
std::string nvml_library();

/// One source for each distinct bus id. Never throws because of the driver.
GpuSources open_gpu_sources(std::span<const GpuPlace> gpus, const std::string& library);

}  // namespace barestep
