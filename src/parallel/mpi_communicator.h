// Ranks as processes, joined by MPI.
#pragma once

#include <memory>

#include "core/communicator.h"

namespace barestep {

/// This process among the ranks.
struct MpiRank {
  std::unique_ptr<Communicator> communicator;
  int local_rank = 0;  // among the ranks on this host
  int local_size = 1;
};

/// Starts MPI, which ends with the communicator; once in a process. Alone, without mpirun, it is
/// one rank. Collectives are carried out in host memory, in place and in pieces; their sums repeat
/// to the bit for the same number of ranks. Throws Error: kConfiguration in a build without MPI or
/// where MPI does not allow several threads, kTryAgain when a call fails. Blocks.
MpiRank join_mpi();

}  // namespace barestep
