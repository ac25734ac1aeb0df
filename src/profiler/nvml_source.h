// GPUs as sources of the monitor, through NVIDIA's management library (NVML), which is part of the
// driver and is loaded on demand.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "profiler/monitor.h"

namespace barestep {

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
