// A job of ranks: starts a launcher, hears what it says, and does not wait for ever.
#pragma once

#include <string>
#include <vector>

namespace barestep {

struct Job {
  std::vector<std::string> command;
  std::vector<std::string> variables;  // NAME=VALUE, beside this process's environment
  double limit_s = 60;                 // then its whole session is killed
};

struct JobResult {
  int code = 0;  // 128 + n if signal n ended it
  std::string err;
  double seconds = 0;
  double ended_at_s = 0;  // of the system's clock, since 1970
};

/// Seconds of a clock that goes on evenly.
double seconds_now();

/// Blocks until the job has ended and nobody can say more. Any thread. Throws std::system_error
/// where it cannot be started.
JobResult run_job(const Job& job);

}  // namespace barestep
