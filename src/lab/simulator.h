// The simulator and its cost model: how long a step takes on a machine, from the very program that
// would run. Everything they say is simulated, never measured.
#pragma once

#include <array>
#include <functional>
#include <limits>
#include <vector>

#include "core/program.h"
#include "lab/machine_card.h"
#include "lab/workload.h"

namespace barestep {

/// When a node ran, since the step began. Input has none: both 0.
struct NodeSpan {
  double begin_s = 0;
  double end_s = 0;
};

struct SimulatedStep {
  double step_s = 0;
  /// What the compute lane of device 0 does; kReduce is what it waits for communication.
  EnumArray<Phase, double> phase_s{};
  std::vector<NodeSpan> spans{};  // by node
};

/// Walks the nodes of an ordered training step: each begins when its lanes are free and what it
/// waits for has ended, and takes seconds(node) on a machine that does nothing else. So many nodes
/// as `at_once` run at full speed beside each other; more share what there is evenly, as threads
/// share cores, and all of that by `contention` longer. Pauses need no core. Input is made before
/// the step, as the trainers make random data, and the host waits for each step, so a step begins
/// with idle lanes.
SimulatedStep simulate(const Program& program, const std::function<double(const Node&)>& seconds,
                       double at_once = std::numeric_limits<double>::infinity(),
                       double contention = 1);

/// Seconds of a node on one of `ranks` processes or devices with `threads` threads each (0: the
/// card's own, a GPU). Where the machine was measured, an op's by its size (machine_card.h), at
/// least a launch; elsewhere as long as its flops or its bytes take, whichever is longer, and a
/// launch (the roofline of Williams, Waterman and Patterson 2009). A collective follows
/// all_reduce_s(); devices of one process that share their memory copy and add there.
double node_s(const Node& node, const MachineCard& card, int ranks, int threads = 0);

/// The step of a run as mlp_lab starts it, `step_s` with what the host adds. Ranks of the CPU share
/// its cores, their communication too, and loading threads that an injected delay keeps busy may be
/// what a step waits for.
SimulatedStep predicted_run(const Workload& workload, const MachineCard& card);

}  // namespace barestep
