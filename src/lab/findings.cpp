#include "lab/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/units.h"

namespace barestep {
namespace {

/// Three significant digits, without an exponent.
}  // namespace

std::string time_text(const Estimate& seconds) {
  return fmt::format("{} ({} to {})", time_text(seconds.median), time_text(seconds.low),
                     time_text(seconds.high));
}

std::string factor_text(double factor) {
  return fmt::format("{:.2f}x", factor);
}

std::string factor_text(const Estimate& factor) {
  return fmt::format("{:.2f}x ({:.2f}x to {:.2f}x)", factor.median, factor.low, factor.high);
}

std::string list_text(const std::vector<std::string>& items) {
  if (items.empty()) return "";
  std::string text = items.front();
  for (std::size_t i = 1; i < items.size(); ++i) {
    text += (i + 1 == items.size() ? " and " : ", ") + items[i];
  }
  return text;
}

}  // namespace barestep
