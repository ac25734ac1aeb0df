// NVIDIA GPUs as devices.
#pragma once

#include <memory>

#include "core/config.h"
#include "core/device.h"

namespace barestep {

/// How many GPUs this process can use; 0 without a driver, or in a build without CUDA.
int cuda_device_count();

/// Opens the GPU that `config` names ("cuda" is cuda:0). Throws Error(kNoDevice).
std::unique_ptr<Device> make_cuda_device(const DeviceConfig& config, int index);

}  // namespace barestep
