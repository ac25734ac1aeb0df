// What mpirun, srun or torchrun passes to a process about its place, available without MPI.
#pragma once

#include <optional>
#include <string>

namespace barestep {

/// A process that a launcher started as one of several.
struct LaunchedRank {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;      // among the ranks on this host
  bool one_host = true;    // all ranks are on this host
  std::string launcher{};  // "mpirun", "srun", "torchrun"
  std::string board{};     // a file that its ranks on this host share; may be empty
};

/// Reads the environment as set by Open MPI's mpirun, MPICH's mpiexec, Slurm's srun or PyTorch's
/// torchrun; nothing if no launcher started this process.
std::optional<LaunchedRank> launched_rank();

/// Throws Error(kConfiguration) if a launcher started several copies that do not see each other.
/// `joined` is the number of ranks that have joined; 0 in a build without MPI.
void require_joined(const std::optional<LaunchedRank>& launched, int joined);

/// For a program that is no rank: what the first of several copies that a launcher started says of
/// them; empty for others.
std::string note_of_copies(const std::optional<LaunchedRank>& launched);

/// One of several copies that do not see each other, started on this host by the same launcher
/// process. The other copies can detect it as long as this object lives.
class LoneCopy {
 public:
  explicit LoneCopy(const LaunchedRank& launched);
  ~LoneCopy();
  LoneCopy(const LoneCopy&) = delete;
  LoneCopy& operator=(const LoneCopy&) = delete;

  /// Whether this copy reports: no copy of a lower rank appears within `seconds`. Blocks for up to
  /// that long, but never for rank 0.
  [[nodiscard]] bool is_first(double seconds) const;

 private:
  [[nodiscard]] bool is_running(int rank) const;

  LaunchedRank launched_;
  int socket_;  // bound to a name that disappears when the process ends
};

}  // namespace barestep
