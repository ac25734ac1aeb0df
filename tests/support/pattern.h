// Regular expressions, compiled once for all test programs: compiling them in each would take
// seconds.
#pragma once

#include <string>
#include <vector>

namespace barestep {

/// For every match of the pattern (ECMAScript's) in the text: the match itself, then its groups.
std::vector<std::vector<std::string>> all_matches(const std::string& text,
                                                  const std::string& pattern);

/// The same for the first match; empty if there is none.
std::vector<std::string> first_match(const std::string& text, const std::string& pattern);

}  // namespace barestep
