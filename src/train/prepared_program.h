// A program with what it takes to run it: streams, events, and the borders between its phases.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/device.h"
#include "core/program.h"

namespace barestep {

/// The lane whose work the account of a step is about.
constexpr LaneId kMainLane{0, Lane::kCompute};

/// Waits reach at most two steps back, so steps take turns on three sets of events. The work inside
/// a captured graph has sets of its own, one per slot.
constexpr int kStepSets = 3;
constexpr int kEventSets = kStepSets + 2;

constexpr std::size_t slot_of(std::int64_t step) {
  return static_cast<std::size_t>(step % 2);
}
constexpr std::size_t set_of(std::int64_t step) {
  return static_cast<std::size_t>(step % kStepSets);
}
constexpr std::size_t captured_set_of(std::int64_t step) {
  return kStepSets + slot_of(step);
}

using EventPerSet = std::array<std::unique_ptr<Event>, kEventSets>;

struct PreparedNode {
  std::vector<Stream*> streams;  // one per part
  // Per set one event per part; empty where nobody waits for the node.
  std::array<std::vector<std::unique_ptr<Event>>, kEventSets> events;
  int border = -1;  // of the program's borders; -1: belongs to none
  bool is_data = false;
  bool reads_pinned = false;
  bool awaited_outside = false;  // by a data node or by the host: not only inside a captured graph
};

/// A run of nodes of one phase on the main lane.
struct PhaseBorder {
  NodeId first = 0;
  NodeId last = 0;
  Phase phase = Phase::kForward;
  std::optional<Phase> waits_for;  // what the gap before it is a wait for
  // It begins where the one before ends, for nothing lies between that could take time: each event
  // on the lane costs a GPU about a microsecond.
  bool shares_begin = false;
  EventPerSet begin;  // empty where it is shared
  EventPerSet end;
};

struct PreparedProgram {
  /// `streams` gives the stream of a lane. Makes all events.
  template <class StreamOf>
  PreparedProgram(const Program& source, int number, std::span<Device* const> devices,
                  const StreamOf& stream_of)
      : program(&source), index(number), nodes(source.nodes().size()) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (const LaneId& lane : lanes_of(source, source.nodes()[i])) {
        nodes[i].streams.push_back(stream_of(lane));
      }
    }
    find_roles();
    find_borders(*devices[0]);
    find_last_reduced(*devices[0]);
    make_events(devices);
  }

  [[nodiscard]] const Node& node(NodeId id) const {
    return program->nodes()[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] PreparedNode& at(NodeId id) { return nodes[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const PreparedNode& at(NodeId id) const {
    return nodes[static_cast<std::size_t>(id)];
  }

  const Program* program;
  int index;  // what the tags of its work carry
  std::vector<PreparedNode> nodes;
  std::vector<PhaseBorder> borders;
  EventPerSet start;                      // where a step begins on the main lane
  NodeId last_reduced = -1;               // of the main device's comm lane; -1: there is none
  EventPerSet reduced;                    // behind it
  std::vector<NodeId> last_of_lane;       // the last node on each lane, data nodes left out
  std::vector<NodeId> last_data_of_lane;  // the same of the data nodes
  std::array<std::unique_ptr<Graph>, 2> graphs;  // of each slot, once captured
  bool has_run = false;                          // a step of it was queued eagerly

 private:
  void find_roles();
  void find_borders(Device& main);
  void find_last_reduced(Device& main);
  void make_events(std::span<Device* const> devices);
};

}  // namespace barestep
