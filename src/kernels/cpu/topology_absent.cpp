// For builds without hwloc.
#include "kernels/cpu/topology.h"

namespace barestep {

std::optional<Placement> place_threads(const PlaceRequest& /*request*/,
                                       const std::string& /*synthetic*/) {
  return std::nullopt;
}

std::string hwloc_version() {
  return "";
}

}  // namespace barestep
