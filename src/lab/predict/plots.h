// Plots of a simulated step: the times when its buckets are reduced, and its memory.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lab/predict/simulator.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"

namespace barestep {

/// A simulated step of a rank: its computation, and a row for each collective with the time from
/// when its data are ready until its turn comes, and the time it takes.
Plot timeline_plot(const Workload& workload, const SimulatedStep& step, std::string title);

/// Devices' memory by category, without categories that none of them has.
using NamedMemory = std::pair<std::string, DeviceMemory>;
Plot memory_plot(std::string title, const std::vector<NamedMemory>& devices);

}  // namespace barestep
