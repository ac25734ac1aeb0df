// The multi-layer perceptron that a trace's linear layers are, if they are one, and barestep's
// prediction for it.
#pragma once

#include <string>

#include "lab/explain/trace_account.h"
#include "lab/report/findings.h"

namespace barestep {

/// If the shapes of a step's linear layers form a chain: the command line that trains the same
/// here, and, if a card is stated or fits the GPU of the trace, the predicted parts of a step
/// beside those of the traces. `machine` is a card's name or file; empty: by the GPU's name. Empty
/// findings if there is no such chain. Throws Error as load_card() does.
Findings mlp_findings(const TracedRun& run, const RunAccount& account, const std::string& machine);

}  // namespace barestep
