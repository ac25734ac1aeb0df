// From a device's name to a device.
#pragma once

#include <memory>
#include <string_view>

#include "core/config.h"
#include "core/device.h"

namespace barestep {

/// What `name` (auto, cpu, cuda, cuda:1) will be on this machine. Opens nothing.
DeviceKind device_kind(std::string_view name);

/// Opens the device that `config` names. Throws Error(kNoDevice) when there is none. A CPU device
/// is called `cpu_name` in messages and tables.
std::unique_ptr<Device> make_device(const DeviceConfig& config, int index = 0,
                                    std::string_view cpu_name = "cpu");

}  // namespace barestep
