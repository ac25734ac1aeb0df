// Starts a trainer or another program, waits for it, and reads its measurements.
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
  double cpu_s = 0;  // of the program and all children that it waited for
};

/// Runs command[0] with the rest as arguments, without a shell. Blocks. `environment` adds
/// variables that this process's environment does not already have. If stop_children() is called
/// meanwhile, the program and all its children get SIGTERM, and Error(kTryAgain) is thrown. Throws
/// Error(kNoInput) if the program cannot be started.
ChildResult run_child(const std::vector<std::string>& command,
                      const std::vector<std::string>& environment = {});

/// Why a program failed, from what it wrote on stderr: the text after its last "error: ". One that
/// crashed wrote none, so it is its last line, without mpirun's frames of dashes.
std::string error_line(const std::string& err);

/// Safe to call from a signal handler.
void stop_children();

/// The full path of a program on PATH; empty if it is not found.
std::string find_on_path(const std::string& program);

/// Where the started programs are.
struct Programs {
  // NOLINTNEXTLINE(google-explicit-constructor): most are a folder
  Programs(std::filesystem::path in, std::string interpreter = "python3")
      : folder(std::move(in)), python(std::move(interpreter)) {}

  std::filesystem::path folder;  // with the trainers
  std::string python;            // the interpreter of PyTorch's scripts
};

/// The environment that mpirun needs in containers and on small machines, in the form of
/// run_child(); scripts/mpi_env.sh explains why.
const std::vector<std::string>& mpi_environment();

/// The mpirun on PATH. Throws Error(kNoInput) if there is none.
std::string path_of_mpirun();

/// The version of PyTorch in an interpreter, "1.13.1". Throws Error(kNoInput) if it has no PyTorch.
std::string pytorch_version(const std::string& python);

/// Runs the case once, through files in `scratch`, which exists. mlp_ddp is started by the mpirun
/// on PATH. Blocks. Throws Error: kNoInput if a program is missing, the trainer's own message and
/// code if it fails, kTryAgain if stopped.
Start run_workload(const Case& what, const Programs& programs,
                   const std::filesystem::path& scratch);

}  // namespace barestep
