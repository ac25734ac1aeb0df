#include "train/timeline.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "core/index.h"

namespace barestep {
namespace {

/// When the lane finished its last work of the step; without any, the end of all work.
double end_on_lane(const StepTimeline& step, LaneId lane) {
  const auto runs = step.plan->runs_on(lane);
  if (!runs.empty()) return step.spans[runs.back()].end_s;
  double end_s = step.host.start_s;
  for (const Span& span : step.spans) end_s = std::max(end_s, span.end_s);
  return end_s;
}

/// The end of the step's wall time.
double wall_end(const StepTimeline& step, LaneId lane) {
  return step.host.overlaps_next ? end_on_lane(step, lane) : step.host.end_s;
}

}  // namespace

std::size_t parts_of(const Program& program) {
  std::size_t parts = 0;
  for (const Node& node : program.nodes()) parts += lanes_of(program, node).size();
  return parts;
}

RunPlan::RunPlan(const Program& program, RunDetail detail)
    : program_(&program), detail_(detail), runs_of_node_(program.nodes().size()) {
  std::set<NodeId> awaited;
  for (const Node& node : program.nodes()) {
    for (const Wait& wait : node.waits) awaited.insert(wait.node);
  }
  for (NodeId id = 0; id < program.size(); ++id) {
    const Node& node = program.node(id);
    for (const LaneId& lane : lanes_of(program, node)) {
      const auto earlier = runs_on(lane);
      const NodeRun* const before = earlier.empty() ? nullptr : &runs_[earlier.back()];
      const bool continues = detail == RunDetail::kRuns && before != nullptr &&
                             node.waits.empty() && std::holds_alternative<DeviceOp>(node.op) &&
                             !before->is_collective && before->phase == node.phase &&
                             before->is_copy == (op_if<Copy>(node.op) != nullptr) &&
                             !awaited.contains(before->last);
      add_part(id, lane, !continues);
    }
  }
  for (NodeRun& run : runs_) {
    for (const Wait& wait : program.node(run.first).waits) {
      for (std::size_t part = 0; part < runs_of(wait.node).size(); ++part) {
        run.awaited.push_back({wait.node, part, wait.steps_back});
      }
    }
    if (run.is_collective) run.parts = runs_of(run.first);
  }
}

void RunPlan::add_part(NodeId id, const LaneId& lane, bool starts_run) {
  const Node& node = program_->node(id);
  std::vector<std::size_t>& on_lane = lanes_[lane];
  if (starts_run) {
    NodeRun run{.lane = lane,
                .first = id,
                .phase = node.phase,
                .is_collective = std::holds_alternative<Collective>(node.op),
                .is_copy = op_if<Copy>(node.op) != nullptr};
    if (!on_lane.empty()) {
      const NodeRun& before = runs_[on_lane.back()];
      run.previous = on_lane.back();
      // Input is queued a step earlier than the nodes after it in the program.
      run.follows_directly = node.waits.empty() && !run.is_collective && !before.is_collective &&
                             (before.phase == Phase::kData) == (run.phase == Phase::kData);
    }
    on_lane.push_back(runs_.size());
    runs_.push_back(std::move(run));
  }
  runs_[on_lane.back()].last = id;
  at(runs_of_node_, id).push_back(on_lane.back());
}

StepTimeline& Timeline::next() {
  newest_ = (newest_ + 1) % kSteps;
  count_ = std::min(count_ + 1, kSteps);
  return steps_[newest_];
}

const StepTimeline* Timeline::at(int steps_back) const {
  const auto back = static_cast<std::size_t>(steps_back);
  return back < count_ ? &steps_[(newest_ + kSteps - back) % kSteps] : nullptr;
}

WallTime Timeline::wall_of_newest(LaneId lane) const {
  const StepTimeline& step = *at(0);
  const StepTimeline* const previous = at(1);
  const bool follows = step.host.overlaps_previous && previous != nullptr;
  const double begin_s = follows ? end_on_lane(*previous, lane) : step.host.start_s;
  return {begin_s, std::max(begin_s, wall_end(step, lane))};
}

double Timeline::before_newest_s(LaneId lane) const {
  const StepTimeline* const previous = at(1);
  if (previous == nullptr) return 0;
  return std::max(0.0, wall_of_newest(lane).begin_s - wall_end(*previous, lane));
}

}  // namespace barestep
