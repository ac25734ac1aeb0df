// How exact the predictions for the cases of a study are.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "lab/report/findings.h"
#include "lab/study/experiment.h"

namespace barestep {

/// The card that predicts these starts: in that arrangement of the cores (core_distance_s()) in
/// which most of them ran, of those that it has loads for.
MachineCard card_of_starts(const MachineCard& card, const Measurement& measured);

/// What the prediction of a case is compared with: its median step, or the mean where steps differ,
/// as those of local SGD and with jitter do. Only starts count whose cores were as far apart as
/// they were for card_of_starts(), if there is any.
Estimate compared_step_s(const Results& results, std::size_t number);
double compared_phase_s(const Results& results, std::size_t number, std::string_view phase);

/// (predicted - measured) / measured, for one case that has a prediction.
double prediction_error(const Results& results, std::size_t number);

/// Covers all distinct predictions within the cores. Cases with the same command line, for example
/// in several experiments, are one prediction, compared with the median of their measurements.
struct PredictionSummary {
  int runs = 0;                                             // distinct predictions
  int beyond_cores = 0;                                     // additional predictions, not counted
  double median_error = 0, p90_error = 0, worst_error = 0;  // of the absolute errors
  double within_tenth = 0;  // share with an error of at most a tenth, which is the goal
  /// Pairs of cases of an experiment whose measured times certainly differ, and of these the pairs
  /// of which the simulation names the faster one.
  int pairs = 0, right_pairs = 0;
};

/// Nothing if no case was predicted.
std::optional<PredictionSummary> prediction_summary(const std::vector<const Results*>& all);

/// The summary in sentences, a row for every case with the part of its error that is largest, and
/// the plot of predictions against measurements. Empty if no case was predicted.
Findings prediction_findings(const std::vector<const Results*>& all);

}  // namespace barestep
