// Whether the fused updates of a step run beside the rest of backward, on the side lane.
#pragma once

#include <string>

#include "core/config.h"
#include "core/device.h"
#include "train/step.h"

namespace barestep {

/// What a GPU reaches. The defaults are an H200's: what copies reach, an instruction a clock for
/// each of four schedulers of 132 multiprocessors at 1.98 GHz, times 32 threads, and what products
/// of fp32 and of tensor cores may be expected to reach (assumed).
struct GpuRates {
  double memory_bytes_per_s = 4.3e12;
  double instructions_per_s = 33.45e12;  // of threads
  double fp32_flops_per_s = 52e12;
  double tensor_flops_per_s = 400e12;
};

struct UpdatesBeside {
  bool beside = false;
  std::string why{};
};

/// The answer for a training step whose updates come after backward; `scheme` as StepPrograms has
/// it. On a GPU that is a calculation: together, an update and the input gradient of the layer
/// below take the sum of their bytes or of their instructions, whichever takes longer; one after
/// the other each takes the longer of its own two. So it pays where one is bound by memory and the
/// other by arithmetic. The bits are the same either way.
UpdatesBeside choose_updates_beside(const TrainConfig& config, DeviceKind kind,
                                    const StepPrograms& after, const GpuRates& rates = {});

}  // namespace barestep
