#include "train/prepared_program.h"

#include <map>

#include "core/index.h"

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
  for (NodeId id = 0; id < program->size(); ++id) {
    at(id).is_data = node(id).phase == Phase::kData;
    for (const Access& access : accesses_of(node(id).op)) {
      if (program->buffers()[access.tensor.buffer].pinned && !access.writes) {
        at(id).reads_pinned = true;
      }
    }
  }
  last_of_lane = last_of_lanes(*program, false);
  last_data_of_lane = last_of_lanes(*program, true);
  for (const NodeId id : last_of_lane) at(id).awaited_outside = true;
  for (NodeId id = 0; id < program->size(); ++id) {
    if (!at(id).is_data) continue;
    for (const Wait& wait : node(id).waits) at(wait.node).awaited_outside = true;
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
