// What ran when: the seam between devices and the one who listens, the marks of a runner.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/program.h"

namespace barestep {

/// Names the node a piece of work belongs to. A node may yield several records.
struct Tag {
  int program = 0;
  std::int64_t step = 0;
  NodeId node = 0;
};

/// What the host queues in one piece carries this instead of a node: the launch of a graph.
constexpr NodeId kGraphLaunch = -1;
constexpr std::string_view kGraphLaunchLabel = "launch graph";

/// Work that is a piece of another node's, which records the whole.
constexpr NodeId kPartOfNode = -2;

/// One piece of work. Times are seconds of the device's clock, which on the CPU device is
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
