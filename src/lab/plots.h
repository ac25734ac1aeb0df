// Plots of one step, its roofline and when its buckets are reduced; and any plot as SVG: no script,
// no font and no file from elsewhere. Colours come from a style sheet, so that they follow a light
// or dark page, and print light.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/findings.h"
#include "lab/machine_card.h"
#include "lab/measurement.h"
#include "lab/simulator.h"

namespace barestep {

/// A point of the roofline: an op of one phase and layer, as often as a step has it.
struct RooflinePoint {
  std::string op;
  double flops_per_byte = 0;
  double flops_per_s = 0;
  double share_of_roof = 0;  // of what the machine's products and memory allow
};

/// The ops that a case recorded and that compute anything, the longest first. Work is the
/// program's, time is measured.
std::vector<RooflinePoint> roofline_points(const Measurement& each, const MachineCard& card);

/// They, below the machine's roof (Williams, Waterman and Patterson 2009).
Plot roofline_plot(const std::vector<RooflinePoint>& points, const MachineCard& card);

/// A simulated step of a rank: what it computes, and a row for each collective with the time from
/// when its data are ready until its turn comes, and the time it takes.
Plot timeline_plot(const Workload& workload, const SimulatedStep& step, std::string title);

/// The element, without a style sheet.
std::string svg_of(const Plot& plot);

/// What colours it: rules for classes that begin with "bs-".
std::string_view svg_style();

/// The same as a file of its own.
std::string svg_file_of(const Plot& plot);

/// About `count` round numbers (1, 2 or 5 times a power of ten apart) from at most `low` to at
/// least `high`. `low` must be below `high`.
std::vector<double> round_marks(double low, double high, int count);

/// With &, <, > and quotes as XML writes them.
std::string xml_text(std::string_view text);

}  // namespace barestep
