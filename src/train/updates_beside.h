// Whether a step's fused updates run alongside the rest of backward, on the side lane.
#pragma once

#include <string>

#include "core/config.h"
#include "core/device.h"
#include "train/step.h"

namespace barestep {

/// The rates that a GPU reaches. The defaults are an H200's: the rate of copies; one instruction
/// per clock for each of four schedulers on 132 multiprocessors at 1.98 GHz, times 32 threads; and
/// the rates assumed for products in fp32 and on tensor cores.
struct GpuRates {
  std::string gpu = "an H200";
  double memory_bytes_per_s = 4.3e12;
  double instructions_per_s = 33.45e12;  // counted per thread
  double fp32_flops_per_s = 52e12;
  double tensor_flops_per_s = 400e12;
};

/// Those measured on this GPU: of memory, and of products in the run's precision. Its instructions
/// follow from the number of multiprocessors, if that is not 0, at an H200's clock.
GpuRates measured_rates(double memory_bytes_per_s, double flops_per_s, int multiprocessors);

struct UpdatesBeside {
  bool beside = false;
  std::string why{};
};

/// Decides for a training step whose updates come after backward; `scheme` as in StepPrograms. For
/// a GPU this is a calculation. Run together, an update and the input gradient of the layer below
/// take the sum of their memory times or of their instruction times, whichever is longer. Run one
/// after another, each takes the longer of its own two. So running them together pays if one is
/// limited by memory and the other by arithmetic. The bits are the same either way.
UpdatesBeside choose_updates_beside(const TrainConfig& config, DeviceKind kind,
                                    const StepPrograms& after, const GpuRates& rates = {});

}  // namespace barestep
