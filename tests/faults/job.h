// A job of several ranks: starts a launcher and collects its output, with a time limit.
#pragma once

#include <string>
#include <vector>

namespace barestep {

struct Job {
  std::vector<std::string> command;
  std::vector<std::string> variables;  // NAME=VALUE, in addition to this process's environment
  double limit_s = 60;                 // after which its whole session is killed
};

struct JobResult {
  int code = 0;  // 128 + n if signal n ended it
  std::string err;
  double seconds = 0;
  double ended_at_s = 0;  // on the system clock, since 1970
};

/// Seconds of a steady clock.
double seconds_now();

/// Blocks until the job has ended and all its output is read. Any thread. Throws std::system_error
/// if it cannot be started.
JobResult run_job(const Job& job);

}  // namespace barestep
