#include "lab/simulator.h"

#include <algorithm>
#include <limits>
#include <map>
#include <variant>

#include "core/error.h"
#include "core/index.h"
#include "core/ops.h"
#include "lab/workload.h"

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
             return wait.steps_back > 0 || at(nodes_, wait.node).is_done;
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
      step_.phase_s[program_.nodes()[i].phase] += length;
      busy += length;
    }
    step_.phase_s[Phase::kReduce] += step_.step_s - busy;
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

namespace {

double delay_s(const DeviceOp& op) {
  const auto* delay = std::get_if<Delay>(&op);
  return delay == nullptr ? 0 : delay->seconds;
}

double roofline_s(const DeviceOp& op, const MachineCard& card) {
  const Cost cost = cost_of(op);
  return std::max(static_cast<double>(cost.flops) / card.flops_per_s,
                  static_cast<double>(cost.bytes) / card.memory_bytes_per_s);
}

/// Seconds of an op by the rate of another kind where its own was not measured: memory's.
double measured_s(const DeviceOp& op, const MachineLoad& load) {
  const OpSize size = size_of(op);
  const double own_s = op_s(size, load.rates);
  if (own_s > 0) return own_s;
  const auto bytes = static_cast<double>(cost_of(op).bytes);
  return op_s({.op = "copy", .width = bytes, .work = bytes}, load.rates);
}

double device_op_s(const DeviceOp& op, const MachineCard& card, const MachineLoad* load) {
  if (load == nullptr) return roofline_s(op, card) + card.launch_s + delay_s(op);
  return std::max(measured_s(op, *load), load->launch_s) + delay_s(op);
}

/// Devices of one process, in their common memory: a copy for each, or a sum of each on the root.
double in_memory_s(const Collective& collective, const Tensor& tensor, std::size_t devices,
                   const MachineCard& card, const MachineLoad* load) {
  const Tensor row{tensor.buffer, tensor.offset_bytes, 1, tensor.size(), tensor.dtype};
  if (std::holds_alternative<Broadcast>(collective)) {
    return device_op_s(Copy{.to = row, .from = row}, card, load);
  }
  const DeviceOp sum = SumRows{.out = row, .in = row, .beta = 1};
  return static_cast<double>(devices - 1) * device_op_s(sum, card, load);
}

double collective_s(const Collective& collective, const MachineCard& card, int ranks,
                    const MachineLoad* load) {
  const auto& tensors = std::visit(
      [](const auto& op) -> const std::vector<Tensor>& { return op.tensors; }, collective);
  // Of all devices of one process where it has several, of all ranks where it has one.
  if (tensors.size() > 1 && !card.on_gpu) {
    return in_memory_s(collective, tensors.front(), tensors.size(), card, load);
  }
  const double all = all_reduce_s(card, static_cast<double>(tensors.front().bytes()),
                                  std::max(static_cast<int>(tensors.size()), ranks));
  // A broadcast or a reduction to one moves half of what both together do.
  return std::holds_alternative<AllReduce>(collective) ? all : all / 2;
}

/// So many lanes of one process run at full speed.
double lanes_at_once(const Workload& workload, const MachineCard& card) {
  const auto cores = static_cast<double>(card.node_ranks);
  if (card.on_gpu || workload.trainer == TrainerKind::kSingle) {
    return std::numeric_limits<double>::infinity();
  }
  return workload.trainer == TrainerKind::kDdp ? cores / workload.ranks : cores;
}

}  // namespace

double node_s(const Node& node, const MachineCard& card, int ranks, int threads) {
  const MachineLoad* load = card.load_of(ranks, threads);
  if (const auto* collective = std::get_if<Collective>(&node.op)) {
    return collective_s(*collective, card, ranks, load);
  }
  return device_op_s(std::get<DeviceOp>(node.op), card, load);
}

SimulatedStep predicted_run(const Workload& workload, const MachineCard& card) {
  const int all_cores = workload.config.device.threads.value_or(card.node_ranks);
  const int threads = card.on_gpu ? 0 : all_cores;
  const DataConfig& data = workload.config.data;
  const WorkloadPrograms programs(workload);
  const MachineLoad* load = card.load_of(workload.ranks, threads);
  SimulatedStep step = simulate(
      programs.step(),
      [&](const Node& node) { return node_s(node, card, workload.ranks, threads); },
      lanes_at_once(workload, card), load == nullptr ? 1 : load->contention);
  step.step_s += load == nullptr ? card.host_s : load->host_s;
  if (data.workers > 0) {
    step.step_s = std::max(step.step_s, 1e-3 * data.io_delay_ms / data.workers);
  }
  return step;
}

}  // namespace barestep
