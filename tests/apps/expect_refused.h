// Runs the cases of the tables of bad input.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "apps/bad_input_cases.h"
#include "support/arguments.h"
#include "support/pattern.h"
#include "support/process.h"
#include "support/temp_dir.h"

namespace barestep {

/// The command line of a case, with its environment.
inline Arguments command_of(const std::string& program, const BadInput& bad) {
  return Arguments{"/usr/bin/env"} + bad.environment + Arguments{program} + bad.arguments;
}

/// Runs each case by `run(bad)`, whose working directory is `folder`, and expects the case's exit
/// code and nothing but its line.
template <class Run>
void expect_refused(const std::string& program, const std::vector<BadInput>& cases,
                    const std::filesystem::path& folder, Run run) {
  for (const BadInput& bad : cases) {
    SCOPED_TRACE(::testing::PrintToString(bad.arguments) + " " + bad.file);
    if (!bad.file.empty()) write_file(folder / "run.json", bad.file);
    const ProcessResult result = run(bad);
    EXPECT_EQ(result.exit_code, bad.exit_code);
    const std::string line = program + ": error: " + bad.line + "\n";
    if (bad.ranks == 1) EXPECT_EQ(result.err, line);
    if (bad.ranks > 1) {
      EXPECT_THAT(result.err, ::testing::StartsWith(line));
      EXPECT_EQ(all_matches(result.err, program + ": error:").size(), 1U) << result.err;
    }
    EXPECT_TRUE(bad.trains || result.out.empty()) << result.out;
  }
}

}  // namespace barestep
