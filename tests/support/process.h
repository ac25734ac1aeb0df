// Runs a program and collects what it says.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace barestep {

struct ProcessOptions {
  enum class Stdout {
    kCapture,
    kFile,      // `stdout_file`, which must exist, as /dev/full does
    kNoReader,  // a pipe whose reading end is closed, as after `| head`
    kClosed,    // as `>&-`
  };
  Stdout stdout_to = Stdout::kCapture;
  std::string stdout_file{};
  std::filesystem::path working_directory{};  // empty: this process's
  double timeout_s = 300;                     // for what hangs: far more than a busy machine needs
};

struct ProcessResult {
  int exit_code = 0;  // 128 + n if signal n ended it, 124 if the time ran out and it was killed
  std::string out{};
  std::string err{};
};

/// Runs command[0] with the rest as arguments, no shell between. Blocks until it ended. Throws
/// std::system_error if it cannot be started.
ProcessResult run_process(const std::vector<std::string>& command,
                          const ProcessOptions& options = {});

}  // namespace barestep
