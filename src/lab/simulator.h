// The simulator: how long a step takes on a machine that is not here, from the same program that
// would run there. Everything it says is simulated, never measured.
#pragma once

#include <array>
#include <functional>

#include "core/program.h"
#include "lab/machine_card.h"

namespace barestep {

struct SimulatedStep {
  double step_s = 0;
  /// What the compute lane of device 0 does; kReduce is what it waits for communication.
  std::array<double, kPhases> phase_s{};

  [[nodiscard]] double of(Phase phase) const { return phase_s[static_cast<std::size_t>(phase)]; }
};

/// Walks the nodes of an ordered training step: each begins when its lanes are free and what it
/// waits for has ended. Input is made before the step, as the trainers make random data, and the
/// host waits for each step, so a step begins with idle lanes.
SimulatedStep simulate(const Program& program, const std::function<double(const Node&)>& seconds);

/// Seconds of a node on a machine: an op is as long as its flops or its bytes take, whichever is
/// longer, and a launch (the roofline of Williams, Waterman and Patterson 2009); a collective
/// follows all_reduce_s().
double node_s(const Node& node, const MachineCard& card, int ranks);

}  // namespace barestep
