// What mpirun, srun or torchrun passes to a process about its place, before and without MPI.
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
  std::string launcher{};  // "mpirun", "srun", "torchrun"
  std::string board{};     // a file that its ranks on this host have in common; may be empty
};

/// From the environment, as Open MPI's mpirun, MPICH's mpiexec, Slurm's srun and PyTorch's torchrun
/// fill it; nothing for a process that was started by itself.
std::optional<LaunchedRank> launched_rank();

/// Throws Error(kConfiguration) when a launcher started several copies that do not see each other.
/// `joined` is how many ranks have joined; 0 in a build without MPI.
void require_joined(const std::optional<LaunchedRank>& launched, int joined);

/// One of several copies that do not see each other, among those that the same process of a
/// launcher started on this host. The others know of it as long as it lives.
class LoneCopy {
 public:
  explicit LoneCopy(const LaunchedRank& launched);
  ~LoneCopy();
  LoneCopy(const LoneCopy&) = delete;
  LoneCopy& operator=(const LoneCopy&) = delete;

  /// Whether this copy reports: no copy of a lower rank shows itself within `seconds`. Blocks so
  /// long, but never for rank 0.
  [[nodiscard]] bool is_first(double seconds) const;

 private:
  [[nodiscard]] bool sees(int rank) const;

  LaunchedRank launched_;
  int socket_;  // bound to a name that ends with the process
};

}  // namespace barestep
