// Records of work with their times: the interface between devices and those that collect them; also
// the marks of a runner.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/program.h"

namespace barestep {

/// Identifies the node that a piece of work belongs to. A node may produce several records.
struct Tag {
  int program = 0;
  std::int64_t step = 0;
  NodeId node = 0;
};

/// Tags of work that the host queues as a unit instead of a node: the graph of a step's input, and
/// that of the rest of its work.
constexpr NodeId kGraphLaunch = -1, kInputLaunch = -3;
constexpr bool is_launch(NodeId node) {
  return node == kGraphLaunch || node == kInputLaunch;
}
/// The launch that queues a node of this phase, if it is in a graph.
constexpr NodeId launch_of(Phase phase) {
  return phase == Phase::kData ? kInputLaunch : kGraphLaunch;
}
constexpr std::string_view label_of_launch(NodeId launch) {
  return launch == kInputLaunch ? "launch input graph" : "launch graph";
}

/// Tag of work that is part of another node's; that node records the whole.
constexpr NodeId kPartOfNode = -2;

/// A piece of work. Times are in seconds of the device's clock, which on the CPU device is
/// std::chrono::steady_clock. `label` points to static text.
struct Record {
  Tag tag;
  std::string_view label;
  int device = 0;
  double start_s = 0;
  double end_s = 0;
};

class RecordSink {
 public:
  virtual ~RecordSink() = default;

  /// Called from the thread that did the work, possibly from several at once. Must not block.
  virtual void on_record(const Record& record) = 0;
};

}  // namespace barestep
