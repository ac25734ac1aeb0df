// The rules that a trace must keep for its readers.
#pragma once

#include <string>
#include <vector>

namespace barestep {

/// One line for each breach in the text of a trace file: what Kineto writes, what
/// HolisticTraceAnalysis, TensorBoard's plugin and Perfetto rely on.
std::vector<std::string> broken_rules(const std::string& text);

/// The same of the traces of several ranks that were made one, which only Perfetto reads.
std::vector<std::string> broken_rules_of_merged(const std::string& text);

}  // namespace barestep
