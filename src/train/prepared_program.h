// A program with the streams and events needed to run it.
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

/// Work inside a captured graph has its own sets of events, one per slot.
constexpr int kEventSets = kStepSets + 2;

constexpr std::size_t captured_set_of(std::int64_t step) {
  return kStepSets + slot_of(step);
}

struct PreparedNode {
  std::vector<Stream*> streams;  // one per part
  // For each set of a step, or each slot inside a graph: one event per part. Empty if nothing waits
  // for the node.
  std::array<std::vector<std::unique_ptr<Event>>, kEventSets> events;
  bool is_data = false;
  // If it is the first of several nodes that its device runs as one launch: their ops, and the
  // other nodes, for whose waits it waits too.
  std::vector<const DeviceOp*> joined{};
  std::vector<NodeId> followers{};
  bool is_follower = false;
};

/// The most ops that may run as one launch.
constexpr std::size_t kMaxJoined = 16;

/// A part of a program's steps as a graph: the input, or the rest of the work.
struct PreparedGraph {
  Stream* origin = nullptr;                      // captured from and launched on; null: no nodes
  std::array<std::unique_ptr<Graph>, 2> graphs;  // by slot, once captured
  std::array<std::unique_ptr<Event>, kStepSets> ends;  // by set: recorded after its launch
  bool has_run = false;  // once outside a graph, so that libraries have loaded what they need
};

struct PreparedProgram {
  /// `streams` returns the stream of a lane. Creates all events. `in_graph`: the program's steps
  /// are graphs, for which all its input must be on one lane.
  template <class StreamOf>
  PreparedProgram(const Program& source, int number, std::span<Device* const> devices,
                  bool in_graph, const StreamOf& stream_of)
      : program(&source), index(number), nodes(source.nodes().size()) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (const LaneId& lane : lanes_of(source, source.nodes()[i])) {
        nodes[i].streams.push_back(stream_of(lane));
      }
    }
    find_roles();
    make_events(devices);
    if (in_graph) prepare_graphs(*devices[0], *stream_of(kMainLane));
  }

  /// Lets the devices, which have prepared its ops, choose which of them run as one launch.
  void join_ops(std::span<Device* const> devices);

  [[nodiscard]] const Node& node(NodeId id) const { return program->node(id); }
  [[nodiscard]] PreparedNode& at(NodeId id) { return barestep::at(nodes, id); }
  [[nodiscard]] const PreparedNode& at(NodeId id) const { return barestep::at(nodes, id); }

  const Program* program;
  int index;  // in the tags of its work
  std::vector<PreparedNode> nodes;
  std::vector<NodeId> last_of_lane;       // by lane: the last node, without data nodes
  std::vector<NodeId> last_data_of_lane;  // by lane: the last data node
  PreparedGraph input, work;

 private:
  void find_roles();
  /// Of the nodes of a lane, how many from the first on run as one launch.
  std::size_t join_first(std::span<const NodeId> lane, Device& device);
  void make_events(std::span<Device* const> devices);
  void prepare_graphs(Device& device, Stream& main);
};

}  // namespace barestep
