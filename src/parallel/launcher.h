// What mpirun or srun tells a process about its place, before and without MPI.
#pragma once

#include <optional>
#include <string>

namespace barestep {

/// A process that a launcher started as one of several.
struct LaunchedRank {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;      // among those on this host
  bool one_host = true;    // all ranks are on this host
  std::string launcher{};  // "mpirun", "srun"
  std::string board{};     // a file that its ranks on this host have in common; may be empty
};

/// From the environment, as Open MPI's mpirun, MPICH's mpiexec and Slurm's srun fill it; nothing
/// for a process that was started by itself.
std::optional<LaunchedRank> launched_rank();

/// Throws Error(kConfiguration) when a launcher started several copies that do not see each other.
/// `joined` is how many ranks have joined; 0 in a build without MPI.
void require_joined(const std::optional<LaunchedRank>& launched, int joined);

}  // namespace barestep
