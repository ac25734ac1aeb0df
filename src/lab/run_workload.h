// Starts a trainer and reads what it measured.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lab/measurement.h"
#include "lab/start.h"

namespace barestep {

/// What mpirun needs in containers and on small machines, as run_child() takes it;
/// scripts/mpi_env.sh tells why.
const std::vector<std::string>& mpi_environment();

/// The mpirun on PATH. Throws Error(kNoInput) if there is none.
std::string path_of_mpirun();

/// Runs the case once, by way of files in `scratch`, which exists. `programs` is the folder of the
/// trainers; mlp_ddp is started by the mpirun on PATH. Blocks. Throws Error: kNoInput if a program
/// is missing, the trainer's own line and code if it fails, kTryAgain when stopped.
Start run_workload(const Case& what, const std::filesystem::path& programs,
                   const std::filesystem::path& scratch);

}  // namespace barestep
