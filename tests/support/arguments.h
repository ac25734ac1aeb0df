// Command lines of our programs, for tests that run them.
#pragma once

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "support/pattern.h"

namespace barestep {

using Arguments = std::vector<std::string>;

inline Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The words of a command line as typed, without quotes.
inline Arguments words(const std::string& typed) {
  std::istringstream text(typed);
  return {std::istream_iterator<std::string>(text), {}};
}

/// Two steps of a model that trains in almost no time.
inline const Arguments kTiny = {"--dim", "8", "--depth", "1", "--steps", "2"};

/// The options in a help text, in its order, without dashes.
inline std::vector<std::string> options_of(const std::string& help) {
  std::vector<std::string> names;
  for (const auto& option : all_matches(help, "\n  (?:-h,)?--([a-z-]+)")) {
    names.push_back(option[1]);
  }
  return names;
}

}  // namespace barestep
