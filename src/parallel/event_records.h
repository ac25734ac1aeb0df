// Records of nodes by events around their work: of devices and communicators that send none, as
// GPUs and NCCL, and of work inside graphs.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "core/communicator.h"
#include "core/device.h"
#include "core/event_clock.h"
#include "core/program.h"
#include "core/record.h"

namespace barestep {

/// Stands between a trainer and the one device and the communicator of a rank. A node's start is
/// when its lane came to it, its end when the lane had done it; of a collective that is when this
/// rank began, and when it was done. Events' times are those of an EventClock.
class EventRecords {
 public:
  /// Of the `nodes` of `program`, which is the runner's first; not of its data nodes, which are not
  /// in graphs. All that is referred to must outlive it. Blocks.
  EventRecords(Device& device, Communicator& communicator, const Program& program,
               const std::vector<NodeId>& nodes, RecordSink& sink);
  ~EventRecords();
  EventRecords(const EventRecords&) = delete;
  EventRecords& operator=(const EventRecords&) = delete;

  /// What to train on; they last as long as the records.
  [[nodiscard]] Device& device() const;
  [[nodiscard]] Communicator& communicator() const;

  /// Sends the records of the runner's step `step`, which must be finished, and at most the next
  /// one queued. Their times are of core/clock.h. May block for some microseconds.
  void send(std::int64_t step);

  /// By how much times may be off at most.
  [[nodiscard]] double clock_error_s() const { return clock_.error_s(); }

 private:
  class MarkedDevice;
  class MarkedCommunicator;
  static constexpr std::size_t kSets = 3;  // steps that may be unfinished, and the one that is read

  struct Marks {
    std::unique_ptr<Event> start, end;
  };
  using MarkSet = std::vector<Marks>;  // by place in nodes_

  /// Which events a step's work passed.
  struct MarkedStep {
    const MarkSet* marks = nullptr;
    std::int64_t step = -1;
  };

  [[nodiscard]] MarkSet new_marks() const;
  [[nodiscard]] MarkedStep& at(std::int64_t step) {
    return steps_[static_cast<std::size_t>(step) % kSets];
  }
  /// Those of a node that is about to be queued; null where nobody asks for it.
  const Marks* marks_of(const Tag& tag);

  Device& inner_;
  std::vector<NodeId> nodes_;
  std::vector<std::string_view> labels_;  // of nodes_
  std::map<NodeId, std::size_t> places_;
  RecordSink& sink_;

  std::array<MarkSet, kSets> eager_;
  std::vector<std::unique_ptr<MarkSet>> captured_;
  std::map<const Graph*, const MarkSet*> of_graph_;
  MarkSet* capturing_ = nullptr;
  bool marked_in_capture_ = false;
  std::array<MarkedStep, kSets> steps_{};

  EventClock clock_;
  std::unique_ptr<MarkedDevice> device_;
  std::unique_ptr<MarkedCommunicator> communicator_;
};

}  // namespace barestep
