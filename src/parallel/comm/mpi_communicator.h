// Ranks as processes, joined by MPI.
#pragma once

#include <memory>
#include <string>

#include "core/communicator.h"
#include "parallel/job/flight_record.h"

namespace barestep {

/// This process among the ranks.
struct MpiRank {
  std::unique_ptr<Communicator> communicator;
  /// The same ranks, for the host calls of a second thread, which leaves its core to others while
  /// it waits. It has no collectives, and must not outlive the communicator.
  std::unique_ptr<Communicator> background;
  int local_rank = 0;  // among the ranks on this host
  int local_size = 1;
  int cpus = 1;           // this rank's part of local_cpus (core/host.h)
  int local_cpus = 1;     // that the ranks on this host may use, all together
  std::string library{};  // name and version of MPI
};

/// Starts MPI, which ends with the communicator; once in a process. Alone, without mpirun, it is
/// one rank. Collectives are carried out in host memory, in place and in pieces; their sums repeat
/// to the bit for the same number of ranks. Host calls and collectives are entered in `record`, if
/// there is one, which must outlive the communicator. Throws Error: kConfiguration in a build
/// without MPI, where MPI does not allow several threads, or where a launcher started copies that
/// do not see each other; kTryAgain when a call fails. Blocks.
MpiRank join_mpi(FlightRecord* record = nullptr);

/// Ends all ranks and does not return; may be called by any thread at any time, also before
/// join_mpi() and after the communicator's end. A process that cannot end so within three seconds
/// ends itself.
[[noreturn]] void end_all_ranks(ExitCode code) noexcept;

}  // namespace barestep
