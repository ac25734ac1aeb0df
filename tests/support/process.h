// Runs a program and collects its output.
#include "support/testing.h"
#pragma once

namespace barestep {

struct ProcessOptions {
  enum class Stdout {
    kCapture,
    kFile,      // to `stdout_file`, which must exist, for example /dev/full
    kNoReader,  // a pipe whose read end is closed, as after `| head`
    kClosed,    // closed, as by `>&-`
  };
  Stdout stdout_to = Stdout::kCapture;
  std::string stdout_file{};
  std::filesystem::path working_directory{};  // empty: this process's
  std::vector<std::string> variables{};       // NAME=VALUE, before those of this process
  bool in_own_session = false;                // the whole of which is killed if it times out
  double timeout_s = 300;                     // for programs that hang; ample on a busy machine
};

struct ProcessResult {
  int exit_code = 0;  // 128 + n if signal n ended it, 124 if it timed out and was killed
  std::string out{};
  std::string err{};
  std::int64_t peak_bytes = 0;  // its largest memory, but at least this process's at the start
  double cpu_s = 0;
};

/// A program that ends with this exit code, a standard error that `err` matches, and at most one
/// line of it that is an error.
MATCHER_P2(Fails, exit_code, err, "") {
  const std::size_t first = arg.err.find(": error: ");
  *result_listener << "exit code " << arg.exit_code << ", " << arg.err;
  return arg.exit_code == exit_code && first == arg.err.rfind(": error: ") &&
         testing::ExplainMatchResult(err, arg.err, result_listener);
}

/// Runs command[0], found on the PATH, with the rest as arguments, without a shell. Blocks until it
/// ends and all that holds its outputs. Any thread. Throws std::system_error if it cannot be
/// started.
ProcessResult run_process(const std::vector<std::string>& command,
                          const ProcessOptions& options = {});

}  // namespace barestep
