// A test that runs our programs in a temporary folder.
#pragma once

#include <nlohmann/json.hpp>

#include "support/metrics.h"
#include "support/process.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {

/// The result, of a program that must have succeeded.
inline ProcessResult succeeded(ProcessResult result) {
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  return result;
}

class ProgramTest : public TempDirTest {
 protected:
  [[nodiscard]] ProcessResult execute(const std::vector<std::string>& command) const {
    return run_process(command, {.working_directory = folder()});
  }
  [[nodiscard]] ProcessResult bash(const std::string& line) const {
    return execute({"/bin/bash", "-c", line});
  }

  /// The content of a file that a program wrote.
  [[nodiscard]] std::string text(const std::string& name) const {
    return read_file(folder() / name);
  }

  /// The file written by --metrics.
  [[nodiscard]] std::vector<nlohmann::json> records(const std::string& name) const {
    return records_of(text(name));
  }

  /// The first rank's losses, step by step, of such a file.
  [[nodiscard]] std::vector<double> losses(const std::string& name) const {
    std::vector<double> all;
    for (const nlohmann::json& record : records(name)) {
      if (record.at("rank") != 0) continue;
      EXPECT_EQ(record.at("step"), all.size());
      all.push_back(record.at("loss"));
    }
    return all;
  }
};

}  // namespace barestep
