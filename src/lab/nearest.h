// "Did you mean": the name that is nearest to what was typed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace barestep {

/// The first that begins with it, else by the least number of letters to insert, remove or replace
/// (Levenshtein's distance). `names` must not be empty.
std::string nearest(std::string_view typed, const std::vector<std::string>& names);

}  // namespace barestep
