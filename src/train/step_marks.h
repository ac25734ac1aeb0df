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
#include <string_view>
#include <vector>

#include "core/communicator.h"
#include "core/device.h"
#include "core/record.h"
#include "train/timeline.h"

namespace barestep {

/// When events were reached, on the host's clock. Events of the host's own processor know. Others
/// tell how far they are apart on their device; what that is on the host's clock is found by an
/// event in a stream where nothing else is queued, between two readings of the host's clock; of
/// several tries the closest two count.
class EventClock {
 public:
  /// Compares the clocks. `device` must outlive it. Blocks.
  explicit EventClock(Device& device);

  /// Of an event of the device that was reached and is made for kTime; of core/clock.h.
  [[nodiscard]] double time_of(const Event& event) const {
    if (is_hosts_) return *event.reached_at_s();
    return compared_s_ + event.seconds_since(*compared_);
  }

  /// Compares them anew. Blocks for some microseconds.
  void compare();

  /// A second after it was compared, since the clocks drift, and since CUDA tells the milliseconds
  /// between events as a float: those of a second are exact to a tenth of a microsecond.
  [[nodiscard]] bool is_old() const;

  /// By how much times may have been off at most.
  [[nodiscard]] double error_s() const { return error_s_; }

 private:
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> compared_, spare_;
  bool is_hosts_ = false;  // events know the host's time
  double compared_s_ = 0;
  double error_s_ = 0;
};

/// Waits reach at most two steps back, so steps take turns on three sets of events.
constexpr int kStepSets = 3;

constexpr std::size_t slot_of(std::int64_t step) {
  return static_cast<std::size_t>(step % 2);
}
constexpr std::size_t set_of(std::int64_t step) {
  return static_cast<std::size_t>(step % kStepSets);
}

/// Looks closer at steps than their account needs: the profiler. Called by the thread that queues.
class StepProfiler {
 public:
  virtual ~StepProfiler() = default;

  /// Whether detail_of() may ask for nodes.
  [[nodiscard]] virtual bool measures_nodes() const { return true; }

  /// How finely the training step `number` is measured. Called once for each, in their order,
  /// before any of its work is queued.
  virtual RunDetail detail_of(std::int64_t number) = 0;

  /// Around the queueing or the capture of a node's work, once for each device it is queued on; of
  /// a graph's launch the tag's node is kGraphLaunch. `label` is static text.
  virtual void before_work(const Tag& /*tag*/, std::string_view /*label*/, int /*device*/) {}
  virtual void after_work() {}

  /// From now on work is captured instead of queued; until it is off again.
  virtual void on_capture(bool /*on*/) {}
};

class StepMarks final : public RecordSink {
 public:
  /// Listens to the devices and the communicator, which may be null, from now on. Without a
  /// `profiler` every step is measured by runs. All must outlive it.
  StepMarks(std::span<Device* const> devices, Communicator* communicator, StepProfiler* profiler);

  /// Listens no more. Nothing may be queued any more.
  ~StepMarks() override;
  StepMarks(const StepMarks&) = delete;
  StepMarks& operator=(const StepMarks&) = delete;

  /// Makes the marks of a program. The n-th added has number n, which tags of its work carry.
  void add(const Program& program);

  /// The step's input is about to be queued; then the rest of its work. `detail` is kRuns unless
  /// the profiler asks for nodes.
  void start_input(std::int64_t step, RunDetail detail);
  void start_work(std::int64_t step);

  /// Before and after a node is queued, or captured, on its streams, one per part.
  void begin(const Tag& tag, std::span<Stream* const> streams);
  void end(const Tag& tag, std::span<Stream* const> streams);

  /// Before and after the graph that holds a step's captured work is launched. The tag's node is
  /// kGraphLaunch.
  void begin_launch(const Tag& tag);
  void end_launch(const Tag& tag);
  void capture(bool on);

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
  /// Where a node stands in the run of its first part. Several parts are separate runs.
  struct Place {
    std::size_t run = 0;
    bool is_first = false, is_last = false;
  };
  /// The runs of a program at one detail.
  struct Marked {
    std::shared_ptr<const RunPlan> plan{};
    std::vector<MarkedRun> runs{};
    std::vector<Place> places{};  // by node
  };
  struct MarkedProgram {
    std::vector<char> is_input{};  // by node
    std::unique_ptr<Marked> by_runs{};
    std::unique_ptr<Marked> by_nodes{};  // null where nobody asks for nodes
  };

  [[nodiscard]] std::unique_ptr<Marked> make_marks(const Program& program, RunDetail detail);
  [[nodiscard]] static std::size_t set_for(const NodeRun& run, std::int64_t step);
  [[nodiscard]] bool knows_by_itself(const NodeRun& run) const;
  [[nodiscard]] Marked& marked(int program, RunDetail detail) const;
  /// The marks that a node's work of this step belongs to.
  [[nodiscard]] Marked& marked(const Tag& tag) const;
  [[nodiscard]] bool is_input(const Tag& tag) const;
  /// Which of a run's sets its node's work of this step belongs to.
  [[nodiscard]] std::size_t set_for(const Tag& tag) const;
  EventClock& clock_of(int device);
  [[nodiscard]] Span read_events(const Marked& marked, std::size_t run, std::size_t set);

  std::vector<Device*> devices_;
  Communicator* communicator_;
  StepProfiler* profiler_;
  std::vector<MarkedProgram> programs_;
  std::vector<std::unique_ptr<EventClock>> clocks_;  // by device; null where no run needs it
  std::array<RunDetail, kSets> input_detail_{};      // of a step's input, by its set
  std::array<RunDetail, 2> work_detail_{};           // and of the rest, by its slot
  std::map<LaneId, double> lane_end_s_;              // of the last step read, without input
};

}  // namespace barestep
