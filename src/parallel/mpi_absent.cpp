// Stands in for MPI in builds without it.
#include "core/error.h"
#include "parallel/mpi_communicator.h"

namespace barestep {

MpiRank join_mpi() {
  fail(ExitCode::kConfiguration, {.what = "transport",
                                  .value = "mpi",
                                  .why = "this build has no MPI",
                                  .remedy = "configure with -DBARESTEP_MPI=ON"});
}

}  // namespace barestep
