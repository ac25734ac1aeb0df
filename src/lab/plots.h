// Plots of one step: its roofline, the times when its buckets are reduced, and its memory.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lab/findings.h"
#include "lab/machine_card.h"
#include "lab/measurement.h"
#include "lab/simulator.h"
#include "lab/workload.h"

namespace barestep {

/// A point of the roofline: an op of one phase and layer, with all its occurrences in a step.
struct RooflinePoint {
  std::string op;
  double flops_per_byte = 0;
  double flops_per_s = 0;
  double share_of_roof = 0;  // share of what the machine's products and memory allow
};

/// The ops that a case recorded and that compute anything, the longest first. The work comes from
/// the program, the time is measured.
std::vector<RooflinePoint> roofline_points(const Measurement& each, const MachineCard& card);

/// Plots these points below the machine's roof (Williams, Waterman and Patterson 2009).
Plot roofline_plot(const std::vector<RooflinePoint>& points, const MachineCard& card);

/// A simulated step of a rank: its computation, and a row for each collective with the time from
/// when its data are ready until its turn comes, and the time it takes.
Plot timeline_plot(const Workload& workload, const SimulatedStep& step, std::string title);

/// Devices' memory by category, without categories that none of them has.
using NamedMemory = std::pair<std::string, DeviceMemory>;
Plot memory_plot(std::string title, const std::vector<NamedMemory>& devices);

}  // namespace barestep
