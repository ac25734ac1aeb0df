#include "support/pattern.h"

#include <regex>

namespace barestep {

std::vector<std::vector<std::string>> all_matches(const std::string& text,
                                                  const std::string& pattern) {
  const std::regex expression(pattern);
  std::vector<std::vector<std::string>> matches;
  for (std::sregex_iterator at(text.begin(), text.end(), expression), end; at != end; ++at) {
    matches.emplace_back(at->begin(), at->end());
  }
  return matches;
}

std::vector<std::string> first_match(const std::string& text, const std::string& pattern) {
  std::smatch match;
  if (!std::regex_search(text, match, std::regex(pattern))) return {};
  return {match.begin(), match.end()};
}

}  // namespace barestep
