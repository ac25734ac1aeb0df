// Marks when the runs of a runner's steps begin and end.
//
// CPU streams and communicators over host memory know it: they send records, which cost two looks
// at the clock. Around everything else events are recorded, in the order of the streams. Inside a
// captured graph these events are nodes of the graph, which every launch records anew.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/communicator.h"
#include "core/device.h"
#include "core/event_clock.h"
#include "core/record.h"
#include "train/timeline.h"

namespace barestep {

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

class StepMarks final : public RecordSink {
 public:
  /// Listens to the devices and the communicator, which may be null, from now on. They must outlive
  /// it.
  StepMarks(std::span<Device* const> devices, Communicator* communicator);

  /// Listens no more. Nothing may be queued any more.
  ~StepMarks() override;
  StepMarks(const StepMarks&) = delete;
  StepMarks& operator=(const StepMarks&) = delete;

  /// Makes the marks of a program. The n-th added has number n, which tags of its work carry.
  void add(const Program& program);

  /// Before and after a node is queued, or captured, on its streams, one per part.
  void begin(const Tag& tag, std::span<Stream* const> streams);
  void end(const Tag& tag, std::span<Stream* const> streams);

  /// The graph that holds the step's captured work is about to be launched.
  void launch(int program, std::int64_t step);

  /// Reads the spans of a finished step, on the host's clock; every step in turn, with its times on
  /// the host filled in. May block for some microseconds.
  void read(int program, StepTimeline& step);

  /// By how much times may be off at most, in seconds.
  [[nodiscard]] double clock_error_s() const;

  void on_record(const Record& record) override;

 private:
  /// The input of step t + 2 may be fetched before step t is read, so that steps take turns on
  /// three sets of marks; of other work two steps are on their way, and it has a set for each slot,
  /// which the two graphs of a program share with steps outside of graphs.
  static constexpr std::size_t kSets = kStepSets;

  struct MarkedRun {
    bool by_events = false;
    std::array<Span, kSets> spans{};  // of records, and when the host queued it
    // A run that follows directly on another one begins at that one's end, or when the host queues
    // it, if that is later.
    std::array<std::unique_ptr<Event>, kSets> begin{}, end{};
  };
  struct MarkedProgram {
    explicit MarkedProgram(const Program& program) : plan(program) {}

    RunPlan plan;
    std::vector<MarkedRun> runs{};
  };

  [[nodiscard]] static std::size_t set_for(const NodeRun& run, std::int64_t step);
  [[nodiscard]] bool knows_by_itself(const NodeRun& run) const;
  EventClock& clock_of(int device);
  [[nodiscard]] Span read_events(const MarkedProgram& program, std::size_t run, std::size_t set);

  std::vector<Device*> devices_;
  Communicator* communicator_;
  std::vector<std::unique_ptr<MarkedProgram>> programs_;
  std::vector<std::unique_ptr<EventClock>> clocks_;  // by device; null where no run needs it
  std::map<LaneId, double> lane_end_s_;              // of the last step read, without input
};

}  // namespace barestep
