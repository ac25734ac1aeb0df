// How much ranks send.
#pragma once

#include <cstdint>

#include "core/program.h"

namespace barestep {

/// Bytes that each of `ranks` sends in a step of `program`, the mean over ranks, where collectives
/// go round in a ring (Patarasuk & Yuan 2009): of an all-reduce 2 (n - 1) / n of its bytes, of a
/// reduce-scatter or an all-gather (n - 1) / n; of others as much.
std::int64_t bytes_sent(const Program& program, int ranks);

}  // namespace barestep
