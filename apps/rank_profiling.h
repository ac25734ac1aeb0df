// Profiling on several ranks: their traces on one clock.
#pragma once

#include "core/communicator.h"
#include "profiling.h"

namespace barestep {

/// Puts what this rank recorded on rank 0's clock, by core/clock.h. Every rank calls it, while no
/// collective is queued. Blocks for some milliseconds.
void align_traces(Communicator& ranks, Profiling& profiling);

}  // namespace barestep
