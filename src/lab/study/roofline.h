// The roofline of a step's ops, as they were recorded (Williams, Waterman and Patterson 2009).
#pragma once

#include <string>
#include <vector>

#include "lab/predict/machine_card.h"
#include "lab/report/findings.h"
#include "lab/study/measurement.h"

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

/// Plots these points below the machine's roof.
Plot roofline_plot(const std::vector<RooflinePoint>& points, const MachineCard& card);

}  // namespace barestep
