#include "core/error.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace barestep {
namespace {

std::string line_of(const Problem& problem) {
  std::string line = problem.what;
  if (!problem.value.empty()) line += fmt::format(" '{}'", problem.value);
  if (!problem.why.empty()) line += ": " + problem.why;
  if (!problem.remedy.empty()) line += "; " + problem.remedy;
  // Names and files may hold what a message may not.
  return on_one_line(std::move(line));
}

/// "/anything/src/core/arena.cpp" -> "src/core/arena.cpp": messages do not depend on the machine.
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
    // Unicode's other controls, U+0080 to U+009F, in UTF-8.
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
  fail(ExitCode::kBug, {.what = "broken promise",
                        .value = condition,
                        .why = fmt::format("{} ({}:{})", why, inside_project(file), line),
                        .remedy = "this is a bug in barestep, please report it"});
}

}  // namespace barestep
