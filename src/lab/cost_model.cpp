#include "lab/cost_model.h"

#include <algorithm>
#include <limits>
#include <variant>

#include "core/ops.h"
#include "lab/step_programs.h"

namespace barestep {
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
