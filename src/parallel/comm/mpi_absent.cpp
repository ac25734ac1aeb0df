// Replaces the MPI sources in builds without MPI.

#include "core/error.h"
#include "parallel/comm/mpi_transport.h"
#include "parallel/job/launcher.h"

namespace barestep {

bool has_mpi() {
  return false;
}

MpiRank join_mpi(FlightRecord* /*record*/) {
  require_joined(launched_rank(), 0);
  fail(ExitCode::kConfiguration,
       {"transport", "mpi", "this build has no MPI", "configure with -DBARESTEP_MPI=ON"});
}

void end_all_ranks(ExitCode code) noexcept {
  std::_Exit(static_cast<int>(code));
}

}  // namespace barestep
