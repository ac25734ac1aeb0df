#include "train/prepared_program.h"

#include <map>

namespace barestep {
namespace {

EventPerSet new_events(Device& device, EventUse use) {
  EventPerSet events;
  for (auto& event : events) event = device.new_event(use);
  return events;
}

/// What a node's waits are for: communication before data, where it waits for both.
std::optional<Phase> awaited_phase(const PreparedProgram& program, const Node& node) {
  std::optional<Phase> found;
  for (const Wait& wait : node.waits) {
    const Phase phase = program.node(wait.node).phase;
    if (phase == Phase::kReduce) return phase;
    if (phase == Phase::kData) found = phase;
  }
  return found;
}

/// The last node on every lane, of the data nodes or of the others.
std::vector<NodeId> last_of_lanes(const Program& program, bool data) {
  std::map<LaneId, NodeId> last;
  for (NodeId id = 0; id < program.size(); ++id) {
    const Node& node = program.nodes()[static_cast<std::size_t>(id)];
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

void PreparedProgram::find_borders(Device& main) {
  for (NodeId id = 0; id < program->size(); ++id) {
    const bool on_main = std::holds_alternative<DeviceOp>(node(id).op) && !at(id).is_data &&
                         LaneId{node(id).device, node(id).lane} == kMainLane;
    if (!on_main) continue;
    if (borders.empty() || borders.back().phase != node(id).phase) {
      const bool shares = !borders.empty() && node(id).waits.empty();
      borders.push_back({.first = id,
                         .last = id,
                         .phase = node(id).phase,
                         .waits_for = awaited_phase(*this, node(id)),
                         .shares_begin = shares,
                         .begin = shares ? EventPerSet{} : new_events(main, EventUse::kTime),
                         .end = new_events(main, EventUse::kTime)});
    }
    borders.back().last = id;
    at(id).border = static_cast<int>(borders.size()) - 1;
  }
}

void PreparedProgram::find_last_reduced(Device& main) {
  for (NodeId id = 0; id < program->size(); ++id) {
    if (lanes_of(*program, node(id)).front() == LaneId{0, Lane::kComm}) last_reduced = id;
  }
  if (last_reduced >= 0) reduced = new_events(main, EventUse::kTime);
}

void PreparedProgram::make_events(std::span<Device* const> devices) {
  start = new_events(*devices[0], EventUse::kTime);
  std::vector<bool> awaited(nodes.size(), false);
  for (const Node& node : program->nodes()) {
    for (const Wait& wait : node.waits) awaited[static_cast<std::size_t>(wait.node)] = true;
  }
  for (const auto& ids : {last_of_lane, last_data_of_lane}) {
    for (const NodeId id : ids) awaited[static_cast<std::size_t>(id)] = true;
  }
  for (NodeId id = 0; id < program->size(); ++id) {
    if (!awaited[static_cast<std::size_t>(id)]) continue;
    for (const LaneId& lane : lanes_of(*program, node(id))) {
      Device& device = *devices[static_cast<std::size_t>(lane.device)];
      for (auto& events : at(id).events) events.push_back(device.new_event(EventUse::kOrder));
    }
  }
}

}  // namespace barestep
