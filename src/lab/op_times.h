// What a trace says about the ops of a step.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/start.h"

namespace barestep {

/// Time of the device by op, phase and layer, per profiled step, the longest first. `trace` is a
/// `--trace` file of one rank. Throws Error(kBadData) naming `name` if it is none.
std::vector<OpTime> op_times_of_trace(std::string_view trace, const std::string& name);

}  // namespace barestep
