// Replaces NVTX in builds without its headers.
#include "kernels/cuda/ranges.h"

namespace barestep {

void begin_range(std::string_view /*name*/) {}

void end_range() {}

}  // namespace barestep
