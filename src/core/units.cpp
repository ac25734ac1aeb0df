#include "core/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <optional>

#include "core/error.h"

namespace barestep {
namespace {

std::string three_digits(double number) {
  if (number == 0 || !std::isfinite(number)) return fmt::format("{:g}", number);
  const int before_point = static_cast<int>(std::floor(std::log10(std::abs(number)))) + 1;
  return fmt::format("{:.{}f}", number, std::max(0, 3 - before_point));
}

struct Unit {
  std::string_view name;  // lower case
  std::int64_t bytes;
};

constexpr std::int64_t kKibi = 1024;
constexpr std::int64_t kKilo = 1000;
constexpr std::array<Unit, 10> kUnits = {{
    {"", 1},
    {"b", 1},
    {"kib", kKibi},
    {"mib", kKibi* kKibi},
    {"gib", kKibi* kKibi* kKibi},
    {"tib", kKibi* kKibi* kKibi* kKibi},
    {"kb", kKilo},
    {"mb", kKilo* kKilo},
    {"gb", kKilo* kKilo* kKilo},
    {"tb", kKilo* kKilo* kKilo* kKilo},
}};

std::optional<std::int64_t> unit_bytes(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const Unit& unit : kUnits) {
    if (unit.name == lower) return unit.bytes;
  }
  return std::nullopt;
}

/// number * unit, exact if the number has no fraction; nothing if it is not a number or too large.
std::optional<std::int64_t> scaled(std::string_view number, std::int64_t unit) {
  const char* end = number.data() + number.size();
  std::int64_t whole = 0;
  if (const auto [rest, error] = std::from_chars(number.data(), end, whole);
      error == std::errc() && rest == end) {
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(whole, unit, &bytes)) return std::nullopt;
    return bytes;
  }
  double fraction = 0;
  if (const auto [rest, error] = read_real(number, fraction, std::chars_format::fixed);
      error != std::errc() || rest != end) {
    return std::nullopt;
  }
  const double bytes = std::round(fraction * static_cast<double>(unit));
  if (bytes >= 0x1p63) return std::nullopt;
  return static_cast<std::int64_t>(bytes);
}

}  // namespace

std::string_view without_blanks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return text.substr(0, text.find_last_not_of(" \t") + 1);
}

std::string human_bytes(std::int64_t bytes) {
  if (bytes > -kKibi && bytes < kKibi) return fmt::format("{} B", bytes);
  constexpr std::array kNames = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  // The smallest value that rounds to 1024; from there on the next unit reads better.
  constexpr double kLargest = 1023.995;
  double value = static_cast<double>(bytes) / kKibi;
  std::size_t unit = 0;
  for (; std::abs(value) >= kLargest && unit + 1 < kNames.size(); ++unit) value /= kKibi;
  return fmt::format("{:.2f} {}", value, kNames[unit]);
}

std::string grouped(std::int64_t number) {
  std::string digits = fmt::format("{}", number);
  const std::size_t first_digit = number < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first_digit + 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string noun_for(std::int64_t number, std::string_view noun) {
  // The ch of "epoch" is pronounced k.
  const bool is_sibilant =
      (noun.ends_with("ch") && !noun.ends_with("epoch")) || noun.ends_with('s');
  return fmt::format("{}{}", noun, number == 1 ? "" : is_sibilant ? "es" : "s");
}

std::string counted(std::int64_t number, std::string_view noun) {
  return fmt::format("{} {}", number, noun_for(number, noun));
}

std::int64_t parse_bytes(std::string_view option, std::string_view text) {
  const std::string_view trimmed = without_blanks(text);
  const std::size_t digits = std::min(trimmed.find_first_not_of("0123456789."), trimmed.size());
  const std::string_view number = trimmed.substr(0, digits);
  const auto unit = unit_bytes(without_blanks(trimmed.substr(digits)));
  const auto bytes = unit && !number.empty() ? scaled(number, *unit) : std::nullopt;
  if (!bytes || *bytes <= 0) {
    fail(ExitCode::kUsage,
         {std::string(option), std::string(text), "is not a number of bytes from 1 to 2^63 - 1",
          "write it like 16GiB, 500MB, 1.5 GiB or 1048576"});
  }
  return *bytes;
}

namespace {

struct TimeUnit {
  char name;
  std::int64_t milliseconds;
};

constexpr std::array<TimeUnit, 4> kTimeUnits = {
    {{'d', 86'400'000}, {'h', 3'600'000}, {'m', 60'000}, {'s', 1000}}};
constexpr std::int64_t kMaxMilliseconds = 10'000 * kTimeUnits[0].milliseconds;

/// Numbers with units, each unit smaller than the one before; nothing for any other text.
std::optional<std::int64_t> duration_milliseconds(std::string_view text) {
  std::int64_t sum = 0;
  const TimeUnit* unit = kTimeUnits.data();
  const TimeUnit* const last = unit + kTimeUnits.size();
  while (!text.empty()) {
    const std::size_t digits = text.find_first_not_of("0123456789.");
    if (digits == std::string_view::npos || digits == 0) return std::nullopt;
    unit =
        std::find_if(unit, last, [&](const TimeUnit& each) { return each.name == text[digits]; });
    if (unit == last) return std::nullopt;
    const auto part = scaled(text.substr(0, digits), unit->milliseconds);
    if (!part || *part > kMaxMilliseconds) return std::nullopt;
    sum += *part;
    ++unit;
    text.remove_prefix(digits + 1);
  }
  if (sum < 1 || sum > kMaxMilliseconds) return std::nullopt;
  return sum;
}

}  // namespace

double parse_duration(std::string_view option, std::string_view text) {
  const auto milliseconds = duration_milliseconds(text);
  if (!milliseconds) {
    fail(ExitCode::kUsage,
         {std::string(option), std::string(text), "is not a time from 0.001s to 10000d",
          "write it like 90s, 10m, 3h50m or 1d"});
  }
  return static_cast<double>(*milliseconds) / 1e3;
}

std::string duration_text(double seconds) {
  auto left = static_cast<std::int64_t>(std::llround(1e3 * seconds));
  std::string text;
  for (const TimeUnit& unit : kTimeUnits) {
    const std::int64_t count = left / unit.milliseconds;
    if (unit.name == 's' && left > 0) {
      text += fmt::format("{}s", static_cast<double>(left) / 1e3);
    } else if (count > 0) {
      text += fmt::format("{}{}", count, unit.name);
    }
    left -= count * unit.milliseconds;
  }
  return text;
}

namespace {

[[noreturn]] void refuse(std::string_view what) {
  fail(ExitCode::kMemory, {"size of", std::string(what), "is larger than 2^63 - 1",
                           "make the model or the batch smaller"});
}

}  // namespace

std::int64_t checked_add(std::int64_t a, std::int64_t b, std::string_view what) {
  std::int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) refuse(what);
  return result;
}

std::int64_t checked_multiply(std::int64_t a, std::int64_t b, std::string_view what) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) refuse(what);
  return result;
}

std::string not_finite_text(double number) {
  return std::isnan(number) ? "nan" : fmt::format("{}", number);
}

std::string number_text(double number) {
  if (!std::isfinite(number) || std::abs(number) < 999.5) return three_digits(number);
  return grouped(std::llround(number));
}

std::string percent_text(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

std::string chosen_percent(double share) {
  return fmt::format("{:.3g} %", 100 * share);
}

std::string time_text(double seconds) {
  const double size = std::abs(seconds);
  if (size >= 0.9995) return three_digits(seconds) + " s";
  if (size >= 0.9995e-3 || size == 0) return three_digits(1e3 * seconds) + " ms";
  return three_digits(1e6 * seconds) + " us";
}

std::string seconds_text(double seconds) {
  int decimals = 4;
  if (seconds > 0) {
    decimals = std::clamp(3 - static_cast<int>(std::floor(std::log10(seconds))), 4, 12);
  }
  return fmt::format("{:.{}f}", seconds, decimals);
}

std::string milliseconds(double seconds) {
  return fmt::format("{:.4f}", 1e3 * seconds);
}

std::string table_time(double seconds) {
  const double us = 1e6 * seconds;
  if (us >= 1e6) return fmt::format("{:.3f}s", us / 1e6);
  if (us >= 1e3) return fmt::format("{:.3f}ms", us / 1e3);
  return fmt::format("{:.3f}us", us);
}

}  // namespace barestep
