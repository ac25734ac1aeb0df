// The CPU as a device: asynchronous streams, real events, one pool of worker threads.
#pragma once

#include <memory>
#include <string>

#include "core/config.h"
#include "core/device.h"

namespace barestep {

struct CpuDeviceOptions {
  int index = 0;
  std::string name = "cpu";
  int threads = 0;  // 0: one for each CPU this process may use
  GemmProvider gemm = GemmProvider::kAuto;
};

/// Throws Error(kConfiguration) when the product library asked for is not in this build.
std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options);

}  // namespace barestep
