// The rules that a trace must follow for its readers.
#pragma once

#include <string>
#include <vector>

namespace barestep {

/// Checks the text of a trace file, with one line per violation: what Kineto writes, and what
/// HolisticTraceAnalysis, TensorBoard's plugin and Perfetto rely on.
std::vector<std::string> broken_rules(const std::string& text);

/// The same for a merged trace of several ranks, which only Perfetto reads.
std::vector<std::string> broken_rules_of_merged(const std::string& text);

}  // namespace barestep
