#include "core/error.h"

#include <fmt/format.h>

#include <string_view>

namespace barestep {
namespace {

std::string line_of(const Problem& problem) {
  std::string line = problem.what;
  if (!problem.value.empty()) line += fmt::format(" '{}'", problem.value);
  if (!problem.why.empty()) line += ": " + problem.why;
  if (!problem.remedy.empty()) line += "; " + problem.remedy;
  // Names and files may hold line breaks and what steers a terminal; a message may not.
  for (char& c : line) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return line;
}

/// "/anything/src/core/arena.cpp" -> "src/core/arena.cpp": messages do not depend on the machine.
std::string_view inside_project(std::string_view file) {
  const auto at = file.rfind("/src/");
  return at == std::string_view::npos ? file : file.substr(at + 1);
}

}  // namespace

Error::Error(ExitCode code, const Problem& problem)
    : std::runtime_error(line_of(problem)), code_(code) {}

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
