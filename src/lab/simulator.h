// The simulator: how long a step takes, from the very program that would run. Everything it says is
// simulated, never measured.
#pragma once

#include <array>
#include <functional>
#include <limits>
#include <vector>

#include "core/program.h"

namespace barestep {

/// When a node ran, since the step began. Input has none: both 0.
struct NodeSpan {
  double begin_s = 0;
  double end_s = 0;
};

struct SimulatedStep {
  double step_s = 0;
  /// What the compute lane of device 0 does; kReduce is what it waits for communication.
  std::array<double, kPhases> phase_s{};
  std::vector<NodeSpan> spans{};  // by node

  [[nodiscard]] double of(Phase phase) const { return phase_s[static_cast<std::size_t>(phase)]; }
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

}  // namespace barestep
