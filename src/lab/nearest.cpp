#include "lab/nearest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace barestep {
namespace {

std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view typed, const std::vector<std::string>& names) {
  const auto begun =
      std::ranges::find_if(names, [&](const std::string& name) { return name.starts_with(typed); });
  if (begun != names.end()) return *begun;
  return *std::ranges::min_element(names, {},
                                   [&](const std::string& name) { return distance(typed, name); });
}

}  // namespace barestep
