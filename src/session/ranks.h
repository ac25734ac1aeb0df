// The many ranks that share a step, as one of them sees them.
#pragma once

#include <memory>

#include "session/place.h"
#include "session/rank_job.h"

namespace barestep {

/// The device of this rank of `job`, which must outlive it: a GPU by its place on the host, or its
/// share of the CPUs.
std::unique_ptr<Place> device_of_rank(RankJob& job);

}  // namespace barestep
