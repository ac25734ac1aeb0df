// Predictions beside measurements, over all runs of a report.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/experiment.h"
#include "lab/findings.h"

namespace barestep {

/// (predicted - measured) / measured, of one case of results that have predictions.
double prediction_error(const Results& results, std::size_t number);

/// Of all cases within the cores.
struct PredictionSummary {
  int runs = 0;
  int beyond_cores = 0;     // further ones, not counted
  double median_error = 0;  // of the errors' sizes
  double within_tenth = 0;  // share of the runs whose error is at most a tenth, which is the goal
};

/// Nothing where no case was predicted.
std::optional<PredictionSummary> prediction_summary(const std::vector<const Results*>& all);

/// The summary in sentences, a row for every case with what the error is made of, and the plot of
/// predictions against measurements. Empty where no case was predicted.
Findings prediction_findings(const std::vector<const Results*>& all);

}  // namespace barestep
