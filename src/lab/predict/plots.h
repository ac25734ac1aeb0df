// The plot of what devices need.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lab/predict/workload.h"
#include "lab/report/findings.h"

namespace barestep {

/// Devices' memory by category, without categories that none of them has.
using NamedMemory = std::pair<std::string, DeviceMemory>;
Plot memory_plot(std::string title, const std::vector<NamedMemory>& devices);

}  // namespace barestep
