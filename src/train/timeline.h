// When the work of a step ran, on every lane, and when the host queued it.
//
// A step's nodes are measured in runs: what follows each other on a lane without anything in
// between that waits or is waited for. A finished step has a span for each run. Three steps are
// kept, since waits reach two steps back. Every figure about time is a fold over these spans;
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
#include "core/program.h"

namespace barestep {

/// Nodes of one lane and phase that are measured as one: none waits for another lane but the first,
/// and no other lane waits for one but the last. A part of a collective is a separate run.
struct NodeRun {
  /// A part of a node that this run waits for, in this step or `steps_back` steps ago. That step
  /// may be measured more or less finely than this one.
  struct AwaitedPart {
    NodeId node = 0;
    std::size_t part = 0;
    int steps_back = 0;
  };

  LaneId lane;
  NodeId first = 0, last = 0;
  Phase phase = Phase::kForward;
  bool is_collective = false;
  bool is_copy = false;
  bool follows_directly = false;          // waits for nothing but the run before it on its lane
  std::optional<std::size_t> previous{};  // on its lane, in the same step
  std::vector<AwaitedPart> awaited{};
  std::vector<std::size_t> parts{};  // of a collective: the runs of all its parts
};

/// How finely a step is measured.
enum class RunDetail {
  kRuns,   // as few runs as tell every cause of a wait
  kNodes,  // a run for every node and part
};

/// How many runs a program has by nodes: one for each node and part.
std::size_t parts_of(const Program& program);

/// The runs of a program. `program` must outlive it.
class RunPlan {
 public:
  explicit RunPlan(const Program& program, RunDetail detail = RunDetail::kRuns);

  [[nodiscard]] const Program& program() const { return *program_; }
  [[nodiscard]] RunDetail detail() const { return detail_; }
  [[nodiscard]] const std::vector<NodeRun>& runs() const { return runs_; }

  /// The runs that hold a node: one for each of its parts, in the order of lanes_of().
  [[nodiscard]] const std::vector<std::size_t>& runs_of(NodeId node) const {
    return at(runs_of_node_, node);
  }

  /// The runs of each lane that the program uses, in their order.
  [[nodiscard]] const std::map<LaneId, std::vector<std::size_t>>& lanes() const { return lanes_; }

  /// The runs of one lane; empty where the program does not use it.
  [[nodiscard]] std::span<const std::size_t> runs_on(LaneId lane) const {
    const auto found = lanes_.find(lane);
    if (found == lanes_.end()) return {};
    return found->second;
  }

 private:
  void add_part(NodeId id, const LaneId& lane, bool starts_run);

  const Program* program_;
  RunDetail detail_;
  std::vector<NodeRun> runs_;
  std::vector<std::vector<std::size_t>> runs_of_node_;
  std::map<LaneId, std::vector<std::size_t>> lanes_;
};

/// A run as it ran, in seconds of core/clock.h.
struct Span {
  double queued_s = 0;        // the host began to queue its first node, or the graph that holds it
  double queued_until_s = 0;  // it was done with the last one; 0 without a profiler
  double begin_s = 0;         // its lane began
  double end_s = 0;

  [[nodiscard]] double seconds() const { return end_s - begin_s; }
  /// False for a run without a record.
  [[nodiscard]] bool is_known() const { return end_s > 0; }
};

/// What the host did around a step, in seconds of core/clock.h.
struct HostTimes {
  double begin_s = 0;   // it starts on the step's input, where that is made before the clock starts
  double start_s = 0;   // the clock starts
  double queued_s = 0;  // the step's work is queued
  double fetch_begin_s = 0;        // it starts on the next step's input; queued_s where it does not
  double fetched_s = 0;            // that input is made and queued; queued_s where it is not
  double end_s = 0;                // the step is done
  bool overlaps_previous = false;  // the step before it was unfinished when it was queued
  bool overlaps_next = false;      // it was unfinished when the next one was queued
  bool is_graph = false;           // all but its input was queued as one graph
  bool joins_lanes = false;  // every lane waited for every other before it: the program changed
};

/// A finished step; spans[i] is of plan->runs()[i]. Copies share the plan, whose program must
/// outlive them.
struct StepTimeline {
  std::shared_ptr<const RunPlan> plan{};
  std::int64_t step = 0;  // of the runner
  HostTimes host{};
  double clock_error_s = 0;  // by how much the spans may be off at most
  std::vector<Span> spans{};
};

/// From where to where a step's wall time goes, in seconds of core/clock.h.
struct WallTime {
  double begin_s = 0;
  double end_s = 0;

  [[nodiscard]] double seconds() const { return end_s - begin_s; }
};

/// The lane whose work the account of a step is about.
constexpr LaneId kMainLane{0, Lane::kCompute};

/// The last steps, newest first: as many as a wait can reach.
class Timeline {
 public:
  static constexpr std::size_t kSteps = 3;

  void add(StepTimeline step) { next() = std::move(step); }

  /// A step that is the newest from now on, for the caller to fill in. It takes the memory of the
  /// one that is forgotten for it.
  StepTimeline& next();

  /// The step `steps_back` steps before the newest; null if it is not kept.
  [[nodiscard]] const StepTimeline* at(int steps_back) const;

  /// The wall time of the newest step, seen from `lane`. A step that overlaps neither neighbour
  /// takes from its start on the host to its end there. Of steps that are queued while others run,
  /// one ends and the next begins when `lane` ends its last work of it: so the walls of such steps
  /// follow each other without a gap.
  [[nodiscard]] WallTime wall_of_newest(LaneId lane) const;

  /// Seconds between the end of the wall time before it and its own begin; 0 where the step before
  /// it is not kept.
  [[nodiscard]] double before_newest_s(LaneId lane) const;

 private:
  std::array<StepTimeline, kSteps> steps_;
  std::size_t newest_ = 0;
  std::size_t count_ = 0;
};

}  // namespace barestep
