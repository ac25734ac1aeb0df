// Starts a trainer or a script of PyTorch, waits for it, and reads its measurements.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lab/study/measurement.h"
#include "lab/study/start.h"

namespace barestep {

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
