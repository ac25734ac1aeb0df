// Command lines that together give every option of a program.
#pragma once

#include "support/arguments.h"
#include "support/process.h"
#include "support/testing.h"

namespace barestep {

/// Runs each command line, which must succeed, and expects that they give all options that --help
/// names, but those that are tested elsewhere.
inline void expect_every_option(const std::vector<Arguments>& command_lines,
                                const std::function<ProcessResult(const Arguments&)>& run,
                                std::set<std::string> elsewhere = {}) {
  std::set<std::string>& covered = elsewhere;
  for (const Arguments& arguments : command_lines) {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    for (const std::string& argument : arguments) {
      if (argument.starts_with("--")) covered.insert(argument.substr(2));
    }
    const ProcessResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(result.err.empty() || result.err.find(": note: ") != std::string::npos)
        << result.err;
  }
  const std::vector<std::string> named = options_of(run({"--help"}).out);
  EXPECT_EQ(std::set<std::string>(named.begin(), named.end()), covered);
}

}  // namespace barestep
