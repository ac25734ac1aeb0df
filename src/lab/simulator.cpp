#include "lab/simulator.h"

#include <algorithm>
#include <map>
#include <variant>
#include <vector>

#include "core/ops.h"

namespace barestep {
namespace {

double delay_s(const Op& op) {
  const auto* device_op = std::get_if<DeviceOp>(&op);
  const auto* delay = device_op == nullptr ? nullptr : std::get_if<Delay>(device_op);
  return delay == nullptr ? 0 : delay->seconds;
}

}  // namespace

SimulatedStep simulate(const Program& program, const std::function<double(const Node&)>& seconds) {
  SimulatedStep step;
  std::map<LaneId, double> free_at;
  std::vector<double> ends(static_cast<std::size_t>(program.size()));
  const LaneId main{.device = 0, .lane = Lane::kCompute};
  double busy = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const Node& node = program.nodes()[i];
    if (node.phase == Phase::kData) continue;
    const std::vector<LaneId> lanes = lanes_of(program, node);
    double begin = 0;
    for (const LaneId& lane : lanes) begin = std::max(begin, free_at[lane]);
    for (const Wait& wait : node.waits) {
      if (wait.steps_back == 0) begin = std::max(begin, ends[static_cast<std::size_t>(wait.node)]);
    }
    const double length = seconds(node);
    ends[i] = begin + length;
    for (const LaneId& lane : lanes) free_at[lane] = ends[i];
    step.step_s = std::max(step.step_s, ends[i]);
    if (std::ranges::find(lanes, main) == lanes.end()) continue;
    step.phase_s[static_cast<std::size_t>(node.phase)] += length;
    busy += length;
  }
  step.phase_s[static_cast<std::size_t>(Phase::kReduce)] += step.step_s - busy;
  return step;
}

double node_s(const Node& node, const MachineCard& card, int ranks) {
  if (const auto* collective = std::get_if<Collective>(&node.op)) {
    const auto bytes =
        std::visit([](const auto& op) { return op.tensors.front().bytes(); }, *collective);
    // Of all devices of one process where it has several, of all ranks where it has one.
    const auto devices =
        static_cast<int>(std::visit([](const auto& op) { return op.tensors.size(); }, *collective));
    const double all = all_reduce_s(card, static_cast<double>(bytes), std::max(devices, ranks));
    // A broadcast or a reduction to one moves half of what both together do.
    return std::holds_alternative<AllReduce>(*collective) ? all : all / 2;
  }
  const Cost cost = cost_of(node.op);
  const double work = std::max(static_cast<double>(cost.flops) / card.flops_per_s,
                               static_cast<double>(cost.bytes) / card.memory_bytes_per_s);
  return work + card.launch_s + delay_s(node.op);
}

}  // namespace barestep
