#include "lab/simulator.h"

#include <algorithm>
#include <map>
#include <variant>

#include "core/error.h"
#include "core/ops.h"

namespace barestep {
namespace {

bool is_pause(const Node& node) {
  const auto* device_op = std::get_if<DeviceOp>(&node.op);
  return device_op != nullptr && std::holds_alternative<Delay>(*device_op);
}

/// One step, from event to event.
class Simulation {
 public:
  Simulation(const Program& program, const std::function<double(const Node&)>& seconds,
             double at_once, double contention)
      : program_(program),
        at_once_(at_once),
        contention_(contention),
        nodes_(static_cast<std::size_t>(program.size())) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const Node& node = program.nodes()[i];
      nodes_[i].is_done = node.phase == Phase::kData;
      if (nodes_[i].is_done) continue;
      nodes_[i].left_s = seconds(node);
      nodes_[i].lanes = lanes_of(program, node);
      for (const LaneId& lane : nodes_[i].lanes) queues_[lane].push_back(i);
    }
    step_.spans.resize(nodes_.size());
  }

  SimulatedStep run() {
    for (start_ready(); !running_.empty(); start_ready()) advance();
    BARESTEP_REQUIRE(std::ranges::all_of(nodes_, [](const State& each) { return each.is_done; }),
                     "a program's nodes wait for each other");
    step_.step_s = now_s_;
    account();
    return std::move(step_);
  }

 private:
  struct State {
    double left_s = 0;  // of its work, at full speed
    std::vector<LaneId> lanes{};
    bool is_done = false;
  };
  /// The nodes of a lane, in their order; `next` is its first that is not done.
  struct Queue {
    std::vector<std::size_t> nodes{};
    std::size_t next = 0;

    void push_back(std::size_t node) { nodes.push_back(node); }
    [[nodiscard]] bool is_at(std::size_t node) const {
      return next < nodes.size() && nodes[next] == node;
    }
  };

  [[nodiscard]] bool is_ready(std::size_t i) const {
    return std::ranges::all_of(nodes_[i].lanes,
                               [&](const LaneId& lane) { return queues_.at(lane).is_at(i); }) &&
           std::ranges::all_of(program_.nodes()[i].waits, [&](const Wait& wait) {
             return wait.steps_back > 0 || nodes_[static_cast<std::size_t>(wait.node)].is_done;
           });
  }

  void start_ready() {
    for (const auto& [lane, queue] : queues_) {
      if (queue.next == queue.nodes.size()) continue;
      const std::size_t i = queue.nodes[queue.next];
      if (std::ranges::find(running_, i) != running_.end() || !is_ready(i)) continue;
      step_.spans[i].begin_s = now_s_;
      running_.push_back(i);
    }
  }

  [[nodiscard]] double speed_of(std::size_t i, double shared) const {
    return is_pause(program_.nodes()[i]) ? 1 : shared;
  }

  /// To the end of whatever ends first.
  void advance() {
    const auto working = static_cast<double>(std::ranges::count_if(
        running_, [&](std::size_t i) { return !is_pause(program_.nodes()[i]); }));
    const double shared = working > at_once_ ? at_once_ / working / contention_ : 1;
    std::size_t first = running_.front();
    for (const std::size_t i : running_) {
      const double left = nodes_[i].left_s / speed_of(i, shared);
      if (left < nodes_[first].left_s / speed_of(first, shared)) first = i;
    }
    const double passed_s = nodes_[first].left_s / speed_of(first, shared);
    now_s_ += passed_s;
    for (const std::size_t i : running_) nodes_[i].left_s -= passed_s * speed_of(i, shared);
    nodes_[first].is_done = true;
    step_.spans[first].end_s = now_s_;
    for (const LaneId& lane : nodes_[first].lanes) ++queues_.at(lane).next;
    std::erase(running_, first);
  }

  void account() {
    const LaneId main{.device = 0, .lane = Lane::kCompute};
    double busy = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (std::ranges::find(nodes_[i].lanes, main) == nodes_[i].lanes.end()) continue;
      const double length = step_.spans[i].end_s - step_.spans[i].begin_s;
      step_.phase_s[static_cast<std::size_t>(program_.nodes()[i].phase)] += length;
      busy += length;
    }
    step_.phase_s[static_cast<std::size_t>(Phase::kReduce)] += step_.step_s - busy;
  }

  const Program& program_;
  double at_once_;
  double contention_;
  std::vector<State> nodes_;
  std::map<LaneId, Queue> queues_;
  std::vector<std::size_t> running_;
  double now_s_ = 0;
  SimulatedStep step_;
};

}  // namespace

SimulatedStep simulate(const Program& program, const std::function<double(const Node&)>& seconds,
                       double at_once, double contention) {
  return Simulation(program, seconds, at_once, contention).run();
}

}  // namespace barestep
