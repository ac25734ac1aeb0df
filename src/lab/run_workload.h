// Starts a trainer, or another program, waits for it and reads what it measured.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lab/measurement.h"
#include "lab/start.h"

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

/// What is started.
struct Programs {
  // NOLINTNEXTLINE(google-explicit-constructor): most are a folder
  Programs(std::filesystem::path in, std::string interpreter = "python3")
      : folder(std::move(in)), python(std::move(interpreter)) {}

  std::filesystem::path folder;  // of the trainers
  std::string python;            // of PyTorch's scripts
};

/// What mpirun needs in containers and on small machines, as run_child() takes it;
/// scripts/mpi_env.sh explains why.
const std::vector<std::string>& mpi_environment();

/// The mpirun on PATH. Throws Error(kNoInput) if there is none.
std::string path_of_mpirun();

/// The version of PyTorch that an interpreter has, "1.13.1". Throws Error(kNoInput) if it has none.
std::string pytorch_version(const std::string& python);

/// Runs the case once, by way of files in `scratch`, which exists. mlp_ddp is started by the mpirun
/// on PATH. Blocks. Throws Error: kNoInput if a program is missing, the trainer's own line and code
/// if it fails, kTryAgain when stopped.
Start run_workload(const Case& what, const Programs& programs,
                   const std::filesystem::path& scratch);

}  // namespace barestep
