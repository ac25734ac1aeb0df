#include "lab/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/units.h"

namespace barestep {
namespace {

/// Three significant digits, without an exponent.
std::string three_digits(double number) {
  if (number == 0 || !std::isfinite(number)) return fmt::format("{:g}", number);
  const int before_point = static_cast<int>(std::floor(std::log10(std::abs(number)))) + 1;
  return fmt::format("{:.{}f}", number, std::max(0, 3 - before_point));
}

}  // namespace

std::string time_text(double seconds) {
  const double size = std::abs(seconds);
  if (size >= 0.9995) return three_digits(seconds) + " s";
  if (size >= 0.9995e-3 || size == 0) return three_digits(1e3 * seconds) + " ms";
  return three_digits(1e6 * seconds) + " us";
}

std::string time_text(const Estimate& seconds) {
  return fmt::format("{} ({} to {})", time_text(seconds.median), time_text(seconds.low),
                     time_text(seconds.high));
}

std::string percent_text(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

std::string factor_text(double factor) {
  return fmt::format("{:.2f}x", factor);
}

std::string factor_text(const Estimate& factor) {
  return fmt::format("{:.2f}x ({:.2f}x to {:.2f}x)", factor.median, factor.low, factor.high);
}

std::string number_text(double number) {
  if (std::abs(number) < 999.5) return three_digits(number);
  return grouped(std::llround(number));
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
