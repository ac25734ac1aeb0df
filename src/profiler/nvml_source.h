// GPUs as the monitor sees them, from NVIDIA's management library (NVML), which comes with the
// driver and is loaded when it is asked for.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "profiler/monitor.h"

namespace barestep {

struct GpuPlace {
  std::string name;        // "cuda:0"
  std::string pci_bus_id;  // "00000000:17:00.0": NVML counts GPUs otherwise than CUDA
};

struct GpuSources {
  std::vector<std::unique_ptr<MonitorSource>> sources;
  std::vector<std::string> notes;  // one for each GPU that cannot be looked at, or one for all
};

/// The library's file: what BARESTEP_NVML says, or the driver's libnvidia-ml.so.1.
std::string nvml_library();

/// One source for each distinct bus id. Never throws for what a driver does.
GpuSources open_gpu_sources(std::span<const GpuPlace> gpus, const std::string& library);

}  // namespace barestep
