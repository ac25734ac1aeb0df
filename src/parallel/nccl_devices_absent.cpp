// Stands in for NCCL in builds without it.
#include "core/error.h"
#include "parallel/nccl_devices.h"

namespace barestep {

std::unique_ptr<Communicator> join_devices_by_nccl(const std::vector<int>& /*ordinals*/) {
  fail(ExitCode::kConfiguration, {.what = "NCCL",
                                  .value = "",
                                  .why = "this build has none",
                                  .remedy = "configure with -DBARESTEP_NCCL=ON"});
}

}  // namespace barestep
