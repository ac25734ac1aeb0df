#include "core/file_pattern.h"

#include <glob.h>

#include <algorithm>
#include <new>
#include <system_error>

#include "core/error.h"

namespace barestep {

std::vector<std::filesystem::path> matching_files(const std::filesystem::path& pattern) {
  std::error_code error;
  const bool is_pattern = pattern.native().find_first_of("*?[") != std::string::npos;
  if (!is_pattern || std::filesystem::exists(pattern, error)) return {pattern};
  glob_t found = {};
  // The order of the C locale: sorted below, not by glob.
  const int status = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::filesystem::path> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (status == GLOB_NOSPACE) throw std::bad_alloc();
  if (paths.empty()) {
    fail(ExitCode::kNoInput, {.what = "data",
                              .value = pattern.string(),
                              .why = "no file fits this pattern",
                              .remedy = "check the path"});
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace barestep
