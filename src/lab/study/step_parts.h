// The parts of a case's step: their names and shares, the largest one, and their bars; and the
// roofline of its ops (Williams, Waterman and Patterson 2009).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/predict/machine_card.h"
#include "lab/report/comparison.h"
#include "lab/report/findings.h"
#include "lab/study/measurement.h"

namespace barestep {

/// The phases of the account, in the order of a step.
std::span<const std::string_view> account_phases();

/// The phases that do computation: forward, loss, backward and optimizer.
std::span<const std::string_view> computing_phases();

/// What device 0 of DataParallel does while the others wait: loss, update and exchange.
std::span<const std::string_view> device_0_phases();

/// The name of a phase in sentences: "exposed communication".
std::string phase_words(std::string_view phase);

/// The phases of a step as bars, one for each case; `labels` name the cases.
Plot account_plot(const std::vector<Measurement>& cases, const std::vector<std::string>& labels);

/// The same with a bar for each rank of each case: one rank's account does not show who waits.
Plot ranks_plot(const std::vector<Measurement>& cases, const std::vector<std::string>& labels);

/// The share of a phase, or of several together, in a step.
Estimate share_of(const Measurement& measured, std::string_view phase);
Estimate share_of(const Measurement& measured, std::span<const std::string_view> phases);

/// The phase that takes the largest part of a step.
LargestPart largest_phase(const Measurement& measured);

/// Of the first case whose mean and median step differ by more than 5 %: that they do, and in which
/// others. Empty if there is none.
std::string bursts_of_cases(const std::vector<Measurement>& cases);

/// A point of the roofline: an op of one phase and layer, with all its occurrences in a step.
struct RooflinePoint {
  std::string op;
  double flops_per_byte = 0;
  double flops_per_s = 0;
  double share_of_roof = 0;  // share of what the machine's products and memory allow
};

/// The ops that a case recorded and that compute anything, the longest first. The work comes from
/// the program, the time is measured.
std::vector<RooflinePoint> roofline_points(const Measurement& measured, const MachineCard& card);

/// Plots these points below the machine's roof.
Plot roofline_plot(const std::vector<RooflinePoint>& points, const MachineCard& card);

}  // namespace barestep
