// When a step's work ran on every lane, and when the host queued it.
//
// A step's nodes are measured in runs: consecutive nodes of a lane with nothing in between that
// waits or is waited for. A finished step has a span for each run. Three steps are kept, since
// waits reach back two steps. Every figure about time is a fold over these spans;
// profiler/account.h has the folds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/index.h"
#include "core/mesh.h"
#include "core/program.h"

namespace barestep {

/// Nodes of one lane and phase that are measured as one. Only the first may wait for another lane,
/// and only the last may be waited for. Each part of a collective is a separate run. In a graph
/// these rules are for waits inside it, and input is a graph of its own that is one run.
struct NodeRun {
  /// A part of a node that this run waits for, in this step or `steps_back` steps earlier. That
  /// step may be measured more finely or more coarsely than this one.
  struct AwaitedPart {
    NodeId node = 0;
    std::size_t part = 0;
    int steps_back = 0;
  };

  LaneId lane;
  NodeId first = 0, last = 0;
  Phase phase = Phase::kForward;  // of its first node
  bool mixes_phases = false;      // only if lanes are measured as a whole
  bool is_collective = false;
  Axis axis = Axis::kAll;                 // of a collective
  bool is_copy = false;                   // all its nodes only copy input
  bool follows_directly = false;          // waits only for the previous run on its lane
  std::optional<std::size_t> previous{};  // on its lane, in the same step
  std::vector<AwaitedPart> awaited{};
  std::vector<std::size_t> parts{};  // collective: the runs of all its parts
};

/// How finely a step is measured.
enum class RunDetail {
  kLanes,  // a run for all that a lane does in a graph
  kRuns,   // the fewest runs that show every cause of a wait
  kNodes,  // a run for every node and part
};

/// The number of runs if a program is measured by nodes: one for each node and part.
std::size_t parts_of(const Program& program);

/// The runs of a program. `program` must outlive it.
class RunPlan {
 public:
  /// `in_graph`: the data nodes are launched as one graph and the others as another one. Then waits
  /// for other graphs are those of the launch and separate no runs. Needed for kLanes, which is for
  /// programs without collectives.
  explicit RunPlan(const Program& program, RunDetail detail = RunDetail::kRuns,
                   bool in_graph = false);

  [[nodiscard]] const Program& program() const { return *program_; }
  [[nodiscard]] RunDetail detail() const { return detail_; }
  [[nodiscard]] const std::vector<NodeRun>& runs() const { return runs_; }

  /// The runs that contain a node: one for each of its parts, in the order of lanes_of().
  [[nodiscard]] const std::vector<std::size_t>& runs_of(NodeId node) const {
    return at(runs_of_node_, node);
  }

  /// The runs of each lane that the program uses, in order.
  [[nodiscard]] const std::map<LaneId, std::vector<std::size_t>>& lanes() const { return lanes_; }

  /// The runs of one lane; empty if the program does not use it.
  [[nodiscard]] std::span<const std::size_t> runs_on(LaneId lane) const {
    const auto found = lanes_.find(lane);
    if (found == lanes_.end()) return {};
    return found->second;
  }

 private:
  void add_part(NodeId id, const LaneId& lane, bool starts_run);
  /// Whether the node itself waits, not the launch of its graph.
  [[nodiscard]] bool takes_place(const Node& node, const Wait& wait) const;
  [[nodiscard]] bool waits(const Node& node) const;
  /// Whether the node continues the lane's last run.
  [[nodiscard]] bool continues(const NodeRun& before, const Node& node, bool is_awaited) const;
  void add_awaited(NodeRun& run, const Wait& wait) const;
  /// Adds what the launch of the input's graph, or of the other one, waits for.
  void add_waits_of_launch(bool of_input);

  const Program* program_;
  RunDetail detail_;
  bool in_graph_;
  std::vector<NodeRun> runs_;
  std::vector<std::vector<std::size_t>> runs_of_node_;
  std::map<LaneId, std::vector<std::size_t>> lanes_;
};

/// The times of a run, in seconds of core/clock.h.
struct Span {
  double queued_s = 0;        // the host began to queue its first node, or its graph
  double queued_until_s = 0;  // the host had queued the last one; 0 without a profiler
  double begin_s = 0;         // its lane began it
  double end_s = 0;

  [[nodiscard]] double seconds() const { return end_s - begin_s; }
  /// False for a run without a record.
  [[nodiscard]] bool is_known() const { return end_s > 0; }
};

/// The host's times around a step, in seconds of core/clock.h.
struct HostTimes {
  double begin_s = 0;              // starts on the step's input, if that is made before the clock
  double start_s = 0;              // the clock starts
  double queued_s = 0;             // the step's work is queued
  double fetch_begin_s = 0;        // starts on the next step's input; else queued_s
  double fetched_s = 0;            // next step's input is made and queued; else queued_s
  double end_s = 0;                // the step is done
  bool overlaps_previous = false;  // was queued while the step before was unfinished
  bool overlaps_next = false;      // was unfinished when the next was queued
  bool is_graph = false;           // all except its input was queued as a graph
  bool input_is_graph = false;     // its input was
  bool joins_lanes = false;        // lanes all waited for each other before it: the program changed
};

/// The begin and end of a step's wall time, in seconds of core/clock.h.
struct WallTime {
  double begin_s = 0;
  double end_s = 0;

  [[nodiscard]] double seconds() const { return end_s - begin_s; }
};

/// A finished step; spans[i] belongs to plan->runs()[i]. Copies share the plan, whose program must
/// outlive them.
struct StepTimeline {
  std::shared_ptr<const RunPlan> plan{};
  std::int64_t step = 0;  // counted by the runner
  HostTimes host{};
  double clock_error_s = 0;  // upper bound of the spans' error
  std::vector<Span> spans{};
  std::vector<WallTime> looks{};  // of a step that is watched: in these times it stood still
};

/// The lane that a step's account describes.
constexpr LaneId kMainLane{0, Lane::kCompute};

/// The most recent steps, newest first: as many as a wait can reach.
class Timeline {
 public:
  static constexpr std::size_t kSteps = 3;

  void add(StepTimeline step) { next() = std::move(step); }

  /// Starts a new newest step, for the caller to fill in. Reuses the memory of the step that is
  /// dropped.
  StepTimeline& next();

  /// The step `steps_back` steps before the newest; null if it is not kept.
  [[nodiscard]] const StepTimeline* at(int steps_back) const;

  /// The wall time of the newest step, as seen from `lane`. A step that overlaps neither neighbor
  /// lasts from its start on the host to its end there. If steps are queued while others run, one
  /// ends and the next begins when `lane` finishes its last work of the first. So the wall times of
  /// such steps follow each other without gaps.
  [[nodiscard]] WallTime wall_of_newest(LaneId lane) const;

  /// Seconds between the end of the previous step's wall time and the beginning of this one's; 0 if
  /// the previous step is not kept.
  [[nodiscard]] double before_newest_s(LaneId lane) const;

 private:
  std::array<StepTimeline, kSteps> steps_;
  std::size_t newest_ = 0;
  std::size_t count_ = 0;
};

}  // namespace barestep
