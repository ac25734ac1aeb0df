#include "core/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace barestep {
namespace {

/// Whether the character at `i` begins with the byte there, in UTF-8.
bool begins_character(std::string_view text, std::size_t i) {
  return i >= text.size() || (static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U;
}

/// A part of a line: the middle is left out of what would fill screens, such as a name of 1 MB.
std::string shortened(std::string_view text) {
  constexpr std::size_t kMaxBytes = 480;
  if (text.size() <= kMaxBytes) return std::string(text);
  std::size_t begin = kMaxBytes / 2;
  std::size_t end = text.size() - kMaxBytes / 2;
  while (!begins_character(text, begin)) --begin;
  while (!begins_character(text, end)) ++end;
  return fmt::format("{}...{}", text.substr(0, begin), text.substr(end));
}

std::string line_of(const Problem& problem) {
  std::string line = shortened(problem.what);
  if (!problem.value.empty()) line += fmt::format(" '{}'", shortened(problem.value));
  if (!problem.why.empty()) line += ": " + shortened(problem.why);
  if (!problem.remedy.empty()) line += "; " + shortened(problem.remedy);
  // Names and files may contain characters that a message must not.
  return on_one_line(std::move(line));
}

/// "/anything/src/core/arena.cpp" -> "src/core/arena.cpp", so messages do not depend on the
/// machine.
std::string_view inside_project(std::string_view file) {
  const auto at = file.rfind("/src/");
  return at == std::string_view::npos ? file : file.substr(at + 1);
}

}  // namespace

Error::Error(ExitCode code, const Problem& problem)
    : std::runtime_error(line_of(problem)), code_(code) {}

std::string on_one_line(std::string text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '\n' || c == '\r' || c == '\t') text[i] = ' ';
    const bool is_control = static_cast<unsigned char>(text[i]) < 0x20 || c == 0x7f;
    // Unicode's C1 controls, U+0080 to U+009F, in UTF-8.
    const bool is_second = c >= 0x80 && c <= 0x9f && i > 0 && text[i - 1] == '\xc2';
    if (is_second) text[i - 1] = '?';
    if (is_control || is_second) text[i] = '?';
  }
  return text;
}

void fail(ExitCode code, const Problem& problem) {
  throw Error(code, problem);
}

void report_bug(const char* file, int line, const char* condition, const std::string& why) {
  fail(ExitCode::kBug,
       {"broken promise", condition, fmt::format("{} ({}:{})", why, inside_project(file), line),
        "this is a bug in barestep, please report it"});
}

namespace {

/// The number of edits that turn `a` into `b`: a letter added, dropped, replaced, or swapped with
/// its neighbor (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string_view nearest(std::string_view name, std::span<const std::string_view> candidates) {
  constexpr std::size_t kLongestName = 64;
  if (name.empty() || name.size() > kLongestName) return {};
  const std::size_t allowed = std::max<std::size_t>(1, name.size() / 3);
  std::string_view best;
  std::size_t best_distance = allowed + 1;
  for (const std::string_view candidate : candidates) {
    const bool cut_short = name.size() >= 3 && candidate != name && candidate.starts_with(name);
    const std::size_t distance = cut_short ? 1 : edit_distance(name, candidate);
    if (distance == best_distance) best = {};
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace barestep
