// --evaluate-only on ranks.
#pragma once

#include "core/communicator.h"
#include "parallel/flight_record.h"
#include "rank_setup.h"

namespace barestep {

/// Evaluates the weights of --load, which rank 0 read, on this rank's share of the samples; rank 0
/// prints and writes what all ranks found. Throws what Evaluator::run() throws, and where the
/// metrics cannot be written. Every rank calls it. Blocks.
void evaluate_on_ranks(RankSetup& setup, Communicator& ranks, FlightRecord& record);

}  // namespace barestep
