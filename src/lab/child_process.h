// Programs that a study starts and waits for.
#pragma once

#include <string>
#include <vector>

namespace barestep {

struct ChildResult {
  int exit_code = 0;  // 128 + n if signal n ended it
  std::string out{};
  std::string err{};
  double wall_s = 0;
  double cpu_s = 0;  // of the program and all that it waited for
};

/// Runs command[0] with the rest as arguments; no shell between. Blocks. `environment` is added to
/// this process's where it does not name a variable already. If stop_children() is called
/// meanwhile, the program and all that it started get SIGTERM, and Error(kTryAgain) is thrown.
/// Throws Error(kNoInput) if the program cannot be started.
ChildResult run_child(const std::vector<std::string>& command,
                      const std::vector<std::string>& environment = {});

/// May be called by a signal handler.
void stop_children();
bool is_stopped();

/// The full path of a program on PATH; empty if there is none.
std::string find_on_path(const std::string& program);

}  // namespace barestep
