// Refuses a run that does not fit, before anything is allocated, and says what would.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/device.h"
#include "core/plan.h"
#include "train/step.h"

namespace barestep {

/// Throws Error(kMemory) when `plan`, which is that of `spec`, needs more than `available_bytes`.
void require_memory(const StepSpec& spec, const MemoryPlan& plan, std::int64_t available_bytes,
                    DeviceKind kind, std::string_view device_name);

}  // namespace barestep
