#include "train/prepared_program.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "core/error.h"

namespace barestep {
namespace {

/// The last node on every lane, of the data nodes or of the others.
std::vector<NodeId> last_of_lanes(const Program& program, bool data) {
  std::map<LaneId, NodeId> last;
  for (NodeId id = 0; id < program.size(); ++id) {
    const Node& node = program.node(id);
    if ((node.phase == Phase::kData) != data) continue;
    for (const LaneId& lane : lanes_of(program, node)) last[lane] = id;
  }
  std::vector<NodeId> nodes;
  for (const auto& [lane, id] : last) nodes.push_back(id);
  return nodes;
}

}  // namespace

void PreparedProgram::find_roles() {
  for (NodeId id = 0; id < program->size(); ++id) at(id).is_data = node(id).phase == Phase::kData;
  last_of_lane = last_of_lanes(*program, false);
  last_data_of_lane = last_of_lanes(*program, true);
}

void PreparedProgram::join_ops(std::span<Device* const> devices) {
  std::map<LaneId, std::vector<NodeId>> lanes;
  for (NodeId id = 0; id < program->size(); ++id) {
    for (const LaneId& lane : lanes_of(*program, node(id))) lanes[lane].push_back(id);
  }
  for (const auto& [lane, ids] : lanes) {
    Device& device = *barestep::at(devices, lane.device);
    for (std::span<const NodeId> rest = ids; !rest.empty();) {
      rest = rest.subspan(join_first(rest, device));
    }
  }
}

std::size_t PreparedProgram::join_first(std::span<const NodeId> lane, Device& device) {
  const NodeId first = lane.front();
  // Whether everything it waits for is queued before the first one.
  const auto may_follow = [&](NodeId id) {
    return at(id).is_data == at(first).is_data &&
           std::ranges::all_of(node(id).waits, [&](const Wait& wait) {
             return wait.steps_back > 0 || wait.node < first;
           });
  };
  std::vector<const DeviceOp*> ops;
  for (const NodeId id : lane.first(std::min(lane.size(), kMaxJoined))) {
    const auto* const op = std::get_if<DeviceOp>(&node(id).op);
    if (op == nullptr || !may_follow(id)) break;
    ops.push_back(op);
  }
  const std::size_t count = ops.size() < 2 ? 1 : device.joins(ops);
  if (count == 1) return 1;
  ops.resize(count);
  at(first).joined = std::move(ops);
  for (const NodeId id : lane.subspan(1, count - 1)) {
    at(first).followers.push_back(id);
    at(id).is_follower = true;
  }
  return count;
}

void PreparedProgram::prepare_graphs(Device& device, Stream& main) {
  if (!last_data_of_lane.empty()) input.origin = at(last_data_of_lane.front()).streams.front();
  for (const PreparedNode& each : nodes) {
    for (const Stream* const stream : each.streams) {
      BARESTEP_REQUIRE(each.is_data == (stream == input.origin),
                       "a graph's input is on a lane of its own");
    }
  }
  work.origin = &main;
  for (PreparedGraph* const graph : {&input, &work}) {
    for (auto& end : graph->ends) end = device.new_event(EventUse::kOrder);
  }
}

void PreparedProgram::make_events(std::span<Device* const> devices) {
  std::vector<bool> awaited(nodes.size(), false);
  for (const Node& node : program->nodes()) {
    for (const Wait& wait : node.waits) barestep::at(awaited, wait.node) = true;
  }
  for (const auto& ids : {last_of_lane, last_data_of_lane}) {
    for (const NodeId id : ids) barestep::at(awaited, id) = true;
  }
  for (NodeId id = 0; id < program->size(); ++id) {
    if (!barestep::at(awaited, id)) continue;
    for (const LaneId& lane : lanes_of(*program, node(id))) {
      Device& device = *barestep::at(devices, lane.device);
      for (auto& events : at(id).events) events.push_back(device.new_event(EventUse::kOrder));
    }
  }
}

}  // namespace barestep
