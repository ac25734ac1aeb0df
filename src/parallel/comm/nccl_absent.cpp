// Replaces the NCCL sources in builds without NCCL.
#include "core/error.h"
#include "parallel/comm/nccl_transport.h"

namespace barestep {

std::string why_no_nccl() {
  return "this build has no NCCL";
}

std::string nccl_version() {
  return "";
}

int nccl_version_code() {
  return 0;
}

std::unique_ptr<Transport> join_nccl(Group& /*ranks*/, Device& /*device*/,
                                     FlightRecord* /*record*/) {
  fail(ExitCode::kConfiguration, {"--transport", "nccl", "this build has no NCCL",
                                  "use mpi, or configure with -DBARESTEP_NCCL=ON"});
}

std::unique_ptr<Transport> join_devices_by_nccl(const std::vector<int>& /*ordinals*/) {
  fail(ExitCode::kConfiguration,
       {"NCCL", "", "this build has none", "configure with -DBARESTEP_NCCL=ON"});
}

}  // namespace barestep
