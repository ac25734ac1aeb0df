// Marks the begin and end of the runs in a runner's steps.
//
// CPU streams and transports over host memory send records with their times, at the cost of two
// clock readings. For all other work, events are recorded before and after it, in stream order.
// Inside a captured graph, these events are nodes of the graph, and every launch records them anew.
// The graph of the input holds none: an event is recorded after its launch, and it begins when it
// is queued.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/record.h"
#include "core/transport.h"
#include "train/timeline.h"

namespace barestep {

/// The times of events on the host's clock. Events of the host's own processor have these times.
/// Others only measure the time between two events on their device. To relate that to the host's
/// clock, an event is recorded in an otherwise empty stream between two readings of the host's
/// clock; of several tries, the one with the closest readings counts.
class EventClock {
 public:
  /// Compares the clocks. `device` must outlive this. Blocks.
  explicit EventClock(Device& device);

  /// The time of one of the device's events, in seconds of core/clock.h. The event must have been
  /// reached and be made with kTime.
  [[nodiscard]] double time_of(const Event& event) const {
    if (is_hosts_) return *event.reached_at_s();
    return compared_s_ + event.seconds_since(*compared_);
  }

  /// Compares the clocks again. Blocks for some microseconds.
  void compare();

  /// True one second after the last comparison, since the clocks drift. Also, CUDA reports the
  /// milliseconds between events as a float, which is exact to a tenth of a microsecond within a
  /// second.
  [[nodiscard]] bool is_old() const;

  /// An upper bound of the error of its times so far.
  [[nodiscard]] double error_s() const { return error_s_; }

 private:
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> compared_, spare_;
  bool is_hosts_ = false;  // events have host times
  double compared_s_ = 0;
  double error_s_ = 0;
};

/// Waits reach back at most two steps, so steps alternate between three sets of events.
constexpr int kStepSets = 3;

constexpr std::size_t slot_of(std::int64_t step) {
  return static_cast<std::size_t>(step % 2);
}
constexpr std::size_t set_of(std::int64_t step) {
  return static_cast<std::size_t>(step % kStepSets);
}

/// The profiler's interface for measuring steps more finely than their account needs. Called on the
/// thread that queues.
class StepProfiler {
 public:
  virtual ~StepProfiler() = default;

  /// How finely the training step `number` is measured. Called once for each step, in order, before
  /// any of its work is queued.
  virtual RunDetail detail_of(std::int64_t number) = 0;

  /// Called before and after a node's work is queued or captured, once for each of its devices. For
  /// a graph's launch, the tag's node is kGraphLaunch or kInputLaunch. `label` is static text.
  virtual void before_work(const Tag& /*tag*/, std::string_view /*label*/, int /*device*/) {}
  virtual void after_work() {}

  /// From now on work is captured instead of queued, or queued again if not `on`.
  virtual void on_capture(bool /*on*/) {}
};

class StepMarks final : public RecordSink {
 public:
  /// From now on, receives records from the devices and the transport, which may be null.
  /// Without a `profiler` every step is measured by runs. All arguments must outlive this.
  StepMarks(std::span<Device* const> devices, Transport* transport, StepProfiler* profiler);

  /// Stops receiving. No work may be queued.
  ~StepMarks() override;
  StepMarks(const StepMarks&) = delete;
  StepMarks& operator=(const StepMarks&) = delete;

  /// Creates the marks of a program, whose steps after the first are graphs if `in_graph`. The n-th
  /// program added has number n, which is in the tags of its work. Without `phases`, a step in
  /// graphs is measured by lanes unless the profiler requests nodes.
  void add(const Program& program, bool in_graph = false, bool phases = true);

  /// Called before the step's input is queued, and before the rest of its work. `detail` is kNodes
  /// if the profiler requests nodes.
  void start_input(std::int64_t step, RunDetail detail);
  void start_work(std::int64_t step);

  /// Called before and after a node is queued or captured on its streams, one per part.
  void begin(const Tag& tag, std::span<Stream* const> streams);
  void end(const Tag& tag, std::span<Stream* const> streams);

  /// Called before and after the graph with a step's captured input or other work is launched. The
  /// tag's node is kInputLaunch or kGraphLaunch.
  void begin_launch(const Tag& tag);
  void end_launch(const Tag& tag, Stream& stream);
  void capture(bool on);

  /// Reads the spans of a finished step, on the host's clock. Call for every step in order, with
  /// its host times filled in. May block for some microseconds.
  void read(int program, StepTimeline& step);

  /// An upper bound of the error of times, in seconds.
  [[nodiscard]] double clock_error_s() const;

  void on_record(const Record& record) override;

 private:
  /// The input of step t + 2 may be fetched before step t is read, so input alternates between
  /// three sets of marks. Of other work, at most two steps are unfinished; it has a set for each
  /// slot, which a program's two graphs share with steps outside graphs.
  static constexpr std::size_t kSets = kStepSets;

  struct MarkedRun {
    bool by_events = false;
    std::array<Span, kSets> spans{};  // from records; and when the host queued it
    // A run that directly follows another one begins when that one ends, or when the host queues it
    // if that is later. Input in a graph begins when the host queues it, or when the input before
    // it ends.
    std::array<std::unique_ptr<Event>, kSets> begin{}, end{};
  };
  /// A node's position in the run of its first part. Several parts are separate runs.
  struct Place {
    std::size_t run = 0;
    bool is_first = false, is_last = false;
  };
  /// The runs of a program at one level of detail.
  struct Marked {
    std::shared_ptr<const RunPlan> plan{};
    std::vector<MarkedRun> runs{};
    std::vector<Place> places{};  // by node
  };
  struct MarkedProgram {
    std::vector<char> is_input{};  // by node
    std::unique_ptr<Marked> by_runs{};
    std::unique_ptr<Marked> by_nodes{};  // null without a profiler
  };

  [[nodiscard]] std::unique_ptr<Marked> make_marks(const Program& program, RunDetail detail,
                                                   bool in_graph);
  [[nodiscard]] static std::size_t set_for(const NodeRun& run, std::int64_t step);
  [[nodiscard]] bool records_own_times(const NodeRun& run) const;
  [[nodiscard]] Marked& marked(int program, RunDetail detail) const;
  /// The marks for a node's work in this step.
  [[nodiscard]] Marked& marked(const Tag& tag) const;
  [[nodiscard]] bool is_input(const Tag& tag) const;
  /// The index of a run's set for its node's work in this step.
  [[nodiscard]] std::size_t set_for(const Tag& tag) const;
  /// Calls use(run, its span) for the runs of a launched graph.
  template <class Use>
  void for_each_launched(const Tag& tag, const Use& use);
  EventClock& clock_of(int device);
  /// The times of a run's events. `previous_end_s` is that of the run before it on its lane.
  [[nodiscard]] Span read_events(const Marked& marked, std::size_t run, std::size_t set,
                                 double previous_end_s);

  std::vector<Device*> devices_;
  Transport* transport_;
  StepProfiler* profiler_;
  std::vector<MarkedProgram> programs_;
  std::vector<std::unique_ptr<EventClock>> clocks_;  // by device; null if no run needs it
  std::array<RunDetail, kSets> input_detail_{};      // of a step's input, by its set
  std::array<RunDetail, 2> work_detail_{};           // of its other work, by its slot
  std::map<LaneId, double> lane_end_s_;              // of the last step read, without input
  double input_end_s_ = 0;                           // of the last step read
  std::vector<double> ends_s_;  // by run of the step that is read: what its end event says
  bool is_capturing_ = false;
};

}  // namespace barestep
