// The cost model: seconds of a node on a machine, and of a whole run there.
#pragma once

#include "core/program.h"
#include "lab/machine_card.h"
#include "lab/simulator.h"
#include "lab/workload.h"

namespace barestep {

/// Seconds of a node on one of `ranks` processes or devices with `threads` threads each (0: the
/// card's own, a GPU). Where the machine was measured, an op's by its size (op_rates.h), at least a
/// launch; elsewhere as long as its flops or its bytes take, whichever is longer, and a launch (the
/// roofline of Williams, Waterman and Patterson 2009). A collective follows all_reduce_s(); devices
/// of one process that share their memory copy and add there.
double node_s(const Node& node, const MachineCard& card, int ranks, int threads = 0);

/// The step of a run as mlp_lab starts it, `step_s` with what the host adds. Ranks of the CPU share
/// its cores, their communication too, and loading threads that an injected delay keeps busy may be
/// what a step waits for.
SimulatedStep predicted_run(const Workload& workload, const MachineCard& card);

}  // namespace barestep
