#include "train/timeline.h"

#include <algorithm>
#include <variant>

#include "core/error.h"

namespace barestep {
namespace {

bool is_input(Phase phase) {
  return phase == Phase::kData;
}

/// Whether the node only copies input.
bool is_input_copy(const Node& node) {
  return is_input(node.phase) && op_if<Copy>(node.op) != nullptr;
}

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

RunPlan::RunPlan(const Program& program, RunDetail detail, bool in_graph)
    : program_(&program),
      detail_(detail),
      in_graph_(in_graph),
      runs_of_node_(program.nodes().size()) {
  BARESTEP_REQUIRE(detail != RunDetail::kLanes || in_graph, "only graphs are measured by lanes");
  std::vector<bool> awaited(program.nodes().size());
  for (const Node& node : program.nodes()) {
    for (const Wait& wait : node.waits) {
      if (takes_place(node, wait)) at(awaited, wait.node) = true;
    }
  }
  for (NodeId id = 0; id < program.size(); ++id) {
    const Node& node = program.node(id);
    for (const LaneId& lane : lanes_of(program, node)) {
      const auto earlier = runs_on(lane);
      const NodeRun* const before = earlier.empty() ? nullptr : &runs_[earlier.back()];
      const bool goes_on = before != nullptr && continues(*before, node, at(awaited, before->last));
      add_part(id, lane, !goes_on);
    }
  }
  for (NodeRun& run : runs_) {
    const Node& first = program.node(run.first);
    for (const Wait& wait : first.waits) {
      if (takes_place(first, wait)) add_awaited(run, wait);
    }
    if (run.is_collective) run.parts = runs_of(run.first);
  }
  if (!in_graph) return;
  add_waits_of_launch(true);
  add_waits_of_launch(false);
}

bool RunPlan::takes_place(const Node& node, const Wait& wait) const {
  if (!in_graph_) return true;
  const Node& awaited = program_->node(wait.node);
  return wait.steps_back == 0 && is_input(awaited.phase) == is_input(node.phase);
}

bool RunPlan::waits(const Node& node) const {
  return std::ranges::any_of(node.waits, [&](const Wait& wait) { return takes_place(node, wait); });
}

bool RunPlan::continues(const NodeRun& before, const Node& node, bool is_awaited) const {
  if (detail_ == RunDetail::kNodes || is_input(before.phase) != is_input(node.phase)) return false;
  if (in_graph_ && (is_input(node.phase) || detail_ == RunDetail::kLanes)) return true;
  return !waits(node) && std::holds_alternative<DeviceOp>(node.op) && !before.is_collective &&
         before.phase == node.phase && before.is_copy == is_input_copy(node) && !is_awaited;
}

void RunPlan::add_awaited(NodeRun& run, const Wait& wait) const {
  for (std::size_t part = 0; part < runs_of(wait.node).size(); ++part) {
    run.awaited.push_back({wait.node, part, wait.steps_back});
  }
}

/// The waits of all its nodes for other graphs are those of its first run. Graphs of work wait for
/// earlier ones on their lane.
void RunPlan::add_waits_of_launch(bool of_input) {
  const auto first = std::ranges::find_if(
      runs_, [&](const NodeRun& run) { return is_input(run.phase) == of_input; });
  if (first == runs_.end()) return;
  for (const Node& node : program_->nodes()) {
    if (is_input(node.phase) != of_input) continue;
    for (const Wait& wait : node.waits) {
      if (is_input(program_->node(wait.node).phase) != of_input) add_awaited(*first, wait);
    }
  }
}

void RunPlan::add_part(NodeId id, const LaneId& lane, bool starts_run) {
  const Node& node = program_->node(id);
  std::vector<std::size_t>& on_lane = lanes_[lane];
  if (starts_run) {
    NodeRun run{.lane = lane, .first = id, .phase = node.phase, .is_copy = true};
    if (const auto* const collective = std::get_if<Collective>(&node.op)) {
      run.is_collective = true;
      run.axis = axis_of(*collective);
    }
    if (!on_lane.empty()) {
      const NodeRun& before = runs_[on_lane.back()];
      run.previous = on_lane.back();
      // Input is queued a step earlier than the nodes after it in the program.
      run.follows_directly = !waits(node) && !run.is_collective && !before.is_collective &&
                             is_input(before.phase) == is_input(run.phase);
    }
    on_lane.push_back(runs_.size());
    runs_.push_back(std::move(run));
  }
  NodeRun& run = runs_[on_lane.back()];
  run.last = id;
  run.mixes_phases = run.mixes_phases || run.phase != node.phase;
  run.is_copy = run.is_copy && is_input_copy(node);
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
