// Ranks as processes, joined by MPI.
#pragma once

#include <memory>
#include <string>

#include "core/group.h"
#include "core/transport.h"
#include "parallel/job/flight_record.h"

namespace barestep {

/// This process's place among the ranks.
struct MpiRank {
  std::unique_ptr<Group> group;
  std::unique_ptr<Transport> transport;
  /// The same ranks, for a second thread, which yields its core while it waits. Must not outlive
  /// the group.
  std::unique_ptr<Group> background;
  int local_rank = 0;  // among the ranks on this host
  int local_size = 1;
  int sharer = 0;  // among the ranks on this host that were given the same CPUs
  int sharers = 1;
  int cpus = 1;           // this rank's share of local_cpus (core/host.h)
  int local_cpus = 1;     // CPUs that the ranks on this host may use together
  std::string library{};  // name and version of MPI
};

/// Whether this build has MPI.
bool has_mpi();

/// Starts MPI, once per process; MPI ends with the group and the transport. Without mpirun, the
/// process is the only rank. Collectives are carried out in host memory, in place and in pieces;
/// their sums are reproducible to the bit for the same number of ranks. Host calls and collectives
/// are entered in `record` if it is not null; it must outlive both. Throws Error: kConfiguration in
/// a build without MPI, if MPI does not allow several threads, or if a launcher started copies that
/// do not see each other; kTryAgain when a call fails. Blocks.
MpiRank join_mpi(FlightRecord* record = nullptr);

/// Ends all ranks and does not return. Any thread may call it at any time, including before
/// join_mpi() and after MPI has ended. If this takes more than three seconds, the
/// process ends itself.
[[noreturn]] void end_all_ranks(ExitCode code) noexcept;

}  // namespace barestep
