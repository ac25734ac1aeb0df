// Command lines of our programs, for tests that run them.
#pragma once

#include <iomanip>

#include "support/pattern.h"
#include "support/testing.h"

namespace barestep {

using Arguments = std::vector<std::string>;

inline Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The words of a command line as typed, of which some may be in single quotes.
inline Arguments words(const std::string& typed) {
  std::istringstream text(typed);
  Arguments all;
  for (std::string word; text >> std::quoted(word, '\'');) all.push_back(word);
  return all;
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
