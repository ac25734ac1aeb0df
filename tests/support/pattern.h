// Regular expressions, compiled once for all test programs: in each one they would take seconds.
#pragma once

#include <string>
#include <vector>

namespace barestep {

/// Of every match of the pattern (ECMAScript's) in the text: the match itself, then its groups.
std::vector<std::vector<std::string>> all_matches(const std::string& text,
                                                  const std::string& pattern);

/// The same of the first match; empty where there is none.
std::vector<std::string> first_match(const std::string& text, const std::string& pattern);

}  // namespace barestep
