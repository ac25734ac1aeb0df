// What DistributedDataParallel would take on several devices, from the trace of a program on one.
//
// Each step of the trace is simulated (lab/predict/simulator.h) as a program whose pieces last as
// long as in the trace. Gradients go to buckets in the order in which backward has them ready, with
// PyTorch's limits (parallel/schemes/ddp.h). With its last gradient a bucket is copied together and
// its all-reduce is queued, beside the rest of backward; behind backward all buckets are copied
// back, and the step goes on. Copies and all-reduces take as long as the card says.
//
// The interval goes from all ranks at the median of these steps to the mean slowest of as many
// draws from them as ranks, with copies and all-reduces as much longer as cards were found to be
// wrong. On the CPU a rank that exchanges leaves its core to what computes, or takes turns with it.
#pragma once

#include "lab/explain/explain_report.h"
#include "lab/predict/machine_card.h"

namespace barestep {

/// Its figures are of the step, and of the buckets of the median step, in seconds since it began.
/// Throws Error: kBadData if the trace is not of one device, communicates, or does not tell its
/// gradients; kConfiguration if the card has fewer devices.
ExplainAnswer ranks_answer(const TracedRun& run, const MachineCard& card, int ranks);

}  // namespace barestep
