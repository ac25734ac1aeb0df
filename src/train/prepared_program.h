// A program with what it takes to run it: streams and events.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/device.h"
#include "core/index.h"
#include "core/program.h"
#include "train/step_marks.h"

namespace barestep {

/// The work inside a captured graph has its own sets of events, one per slot.
constexpr int kEventSets = kStepSets + 2;

constexpr std::size_t captured_set_of(std::int64_t step) {
  return kStepSets + slot_of(step);
}

struct PreparedNode {
  std::vector<Stream*> streams;  // one per part
  // Per set of a step, or of a slot inside a graph, one event per part; empty where nothing waits
  // for the node.
  std::array<std::vector<std::unique_ptr<Event>>, kEventSets> events;
  bool is_data = false;
  bool reads_pinned = false;
  bool awaited_outside = false;  // by a data node or by the host: not only inside a captured graph
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
    make_events(devices);
  }

  [[nodiscard]] const Node& node(NodeId id) const { return program->node(id); }
  [[nodiscard]] PreparedNode& at(NodeId id) { return barestep::at(nodes, id); }
  [[nodiscard]] const PreparedNode& at(NodeId id) const { return barestep::at(nodes, id); }

  const Program* program;
  int index;  // what the tags of its work carry
  std::vector<PreparedNode> nodes;
  std::vector<NodeId> last_of_lane;              // the last node on each lane, data nodes left out
  std::vector<NodeId> last_data_of_lane;         // the same of the data nodes
  std::array<std::unique_ptr<Graph>, 2> graphs;  // of each slot, once captured
  bool has_run = false;                          // a step of it was queued eagerly

 private:
  void find_roles();
  void make_events(std::span<Device* const> devices);
};

}  // namespace barestep
