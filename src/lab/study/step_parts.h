// The parts of a case's step: their names and shares, the largest one, and their bars.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/report/comparison.h"
#include "lab/report/findings.h"
#include "lab/study/measurement.h"

namespace barestep {

/// The phases of the account, in the order of a step.
std::span<const std::string_view> account_phases();

/// The phases that do computation: forward, loss, backward and optimizer.
std::span<const std::string_view> computing_phases();

/// The phases that are the wait for a slow disk: data wait and the injected pause.
std::span<const std::string_view> disk_phases();

/// What device 0 of DataParallel does while the others wait: loss, update and exchange.
std::span<const std::string_view> device_0_phases();

/// The name of a phase in sentences: "exposed communication".
std::string phase_words(std::string_view phase);

/// The phases of a step as bars, one for each case; `labels` name the cases.
Plot account_plot(const std::vector<Measurement>& cases, const std::vector<std::string>& labels);

/// The same with a bar for each rank of each case: one rank's account does not show who waits.
Plot ranks_plot(const std::vector<Measurement>& cases, const std::vector<std::string>& labels);

/// The share of a phase, or of several together, in a step.
Estimate share_of(const Measurement& each, std::string_view phase);
Estimate share_of(const Measurement& each, std::span<const std::string_view> phases);

/// The phase that takes the largest part of a step.
LargestPart largest_phase(const Measurement& each);

/// For a case whose mean and median step differ by more than 5 %: that they do. Empty for others.
std::string bursts_sentence(const Measurement& each);

/// The same of the first such case, which names the others.
std::string bursts_of_cases(const std::vector<Measurement>& cases);

}  // namespace barestep
