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

/// Tag of work that the host queues as a unit, such as a graph's launch, instead of a node.
constexpr NodeId kGraphLaunch = -1;
constexpr std::string_view kGraphLaunchLabel = "launch graph";

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
