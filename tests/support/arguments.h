// Command lines of our programs, for tests that run them.
#pragma once

#include <regex>
#include <string>
#include <vector>

namespace barestep {

using Arguments = std::vector<std::string>;

inline Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Two steps of a model that takes no time.
inline const Arguments kTiny = {"--dim", "8", "--depth", "1", "--steps", "2"};

/// The options that a help text names, in its order, without dashes.
inline std::vector<std::string> options_of(const std::string& help) {
  const std::regex option("\n  (?:-h,)?--([a-z-]+)");
  std::vector<std::string> names;
  for (std::sregex_iterator match(help.begin(), help.end(), option), end; match != end; ++match) {
    names.push_back((*match)[1]);
  }
  return names;
}

}  // namespace barestep
