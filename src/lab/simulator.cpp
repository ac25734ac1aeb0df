#include "lab/simulator.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
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

/// Simulates one step, event by event.
class Simulation {
 public:
  Simulation(const Program& program, const std::function<double(const Node&)>& seconds,
             const Sharing& sharing)
      : program_(program), sharing_(sharing), nodes_(static_cast<std::size_t>(program.size())) {
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
  /// The nodes of a lane, in order; `next` is the first that is not done.
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

  /// Work that each running node does per second.
  struct Speeds {
    double kernels = 1;
    double collectives = 1;
    std::map<int, int> senders{};  // nodes that send from a device, by device
  };

  [[nodiscard]] Speeds speeds() const {
    int working = 0;
    bool exchanges = false;
    Speeds speeds;
    for (const std::size_t i : running_) {
      const Node& node = program_.nodes()[i];
      if (!is_pause(node)) ++working;
      exchanges = exchanges || std::holds_alternative<Collective>(node.op);
      if (const auto device = sender_of(node)) ++speeds.senders[*device];
    }
    speeds.collectives =
        working > sharing_.at_once ? sharing_.at_once / working / sharing_.contention : 1;
    speeds.kernels = exchanges ? speeds.collectives / sharing_.kernel_slowdown : speeds.collectives;
    return speeds;
  }

  [[nodiscard]] std::optional<int> sender_of(const Node& node) const {
    return sharing_.sends_from ? sharing_.sends_from(node) : std::nullopt;
  }

  [[nodiscard]] double speed_of(std::size_t i, const Speeds& speeds) const {
    const Node& node = program_.nodes()[i];
    if (is_pause(node)) return 1;
    if (const auto device = sender_of(node)) return 1.0 / speeds.senders.at(*device);
    return std::holds_alternative<Collective>(node.op) ? speeds.collectives : speeds.kernels;
  }

  /// Advances to the next end of a node.
  void advance() {
    const Speeds now = speeds();
    std::size_t first = running_.front();
    for (const std::size_t i : running_) {
      const double left = nodes_[i].left_s / speed_of(i, now);
      if (left < nodes_[first].left_s / speed_of(first, now)) first = i;
    }
    const double passed_s = nodes_[first].left_s / speed_of(first, now);
    now_s_ += passed_s;
    for (const std::size_t i : running_) nodes_[i].left_s -= passed_s * speed_of(i, now);
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
    step_.phase_s[Phase::kCommunication] += step_.step_s - busy;
  }

  const Program& program_;
  Sharing sharing_;
  std::vector<State> nodes_;
  std::map<LaneId, Queue> queues_;
  std::vector<std::size_t> running_;
  double now_s_ = 0;
  SimulatedStep step_;
};

}  // namespace

SimulatedStep simulate(const Program& program, const std::function<double(const Node&)>& seconds,
                       const Sharing& sharing) {
  return Simulation(program, seconds, sharing).run();
}

namespace {

/// A tile of a product on a GPU.
struct GpuTile {
  std::int64_t height = 0;
  std::int64_t width = 0;
};

constexpr GpuTile kGpuTiles[] = {
    {32, 32},   {32, 64},   {64, 32},   {32, 128},  {64, 64},   {128, 32}, {64, 128}, {128, 64},
    {64, 256},  {128, 128}, {256, 64},  {128, 256}, {256, 128}, {64, 96},  {96, 64},  {96, 128},
    {128, 160}, {160, 128}, {192, 128}, {128, 192}, {128, 96},  {32, 256}, {256, 32}};

double number_of(std::int64_t count) {
  return static_cast<double>(count);
}

/// Seconds of a product in tiles of this size, with the fastest number of pieces of its sums.
double tiled_s(const ProductSize& product, const GpuTile& tile, double flops_per_s,
               const MachineCard& card) {
  constexpr std::int64_t kMinDepth = 64;  // of a piece
  const auto rounds = [](std::int64_t size, std::int64_t each) { return (size + each - 1) / each; };
  const auto loads = [](std::int64_t height, std::int64_t width) {
    return 1 / number_of(height) + 1 / number_of(width);  // per multiply-add
  };
  const std::int64_t tiles = rounds(product.rows, tile.height) * rounds(product.cols, tile.width);
  // The rate of large products is that of tiles of 128 x 128; larger ones are not faster.
  const double slowdown =
      std::max(1.0, 1 + card.load_macs * (loads(tile.height, tile.width) - loads(128, 128)));
  const double tile_s = 2 * number_of(tile.height * tile.width) * slowdown * card.multiprocessors /
                        flops_per_s;  // per number of depth
  const double partial_sums_s =
      2 * 4 * number_of(product.rows) * number_of(product.cols) / card.memory_bytes_per_s;
  const std::int64_t max_pieces =
      std::clamp<std::int64_t>(product.depth / kMinDepth, 1, 2 * card.multiprocessors / tiles + 1);
  double min_s = std::numeric_limits<double>::infinity();
  for (std::int64_t pieces = 1; pieces <= max_pieces; ++pieces) {
    const double seconds = number_of(rounds(tiles * pieces, card.multiprocessors)) *
                           number_of(rounds(product.depth, pieces)) * tile_s;
    min_s = std::min(min_s, pieces == 1 ? seconds : seconds + number_of(pieces) * partial_sums_s);
  }
  return min_s;
}

}  // namespace

double product_share(const ProductSize& product, double flops_per_s, const MachineCard& card) {
  const double macs = number_of(product.rows) * number_of(product.cols) * number_of(product.depth);
  if (card.multiprocessors == 0 || macs <= 0) return 1;
  double min_s = std::numeric_limits<double>::infinity();
  for (const GpuTile& tile : kGpuTiles) {
    min_s = std::min(min_s, tiled_s(product, tile, flops_per_s, card));
  }
  return 2 * macs / flops_per_s / min_s;
}

namespace {

double delay_s(const DeviceOp& op) {
  const auto* delay = std::get_if<Delay>(&op);
  return delay == nullptr ? 0 : delay->seconds;
}

double flops_per_s(const DeviceOp& op, const MachineCard& card, Precision precision) {
  const auto* const gemm = std::get_if<Gemm>(&op);
  double max = card.flops_per_s;
  if (gemm != nullptr && gemm->a.dtype != DType::kF32 && card.half_flops_per_s > 0) {
    max = card.half_flops_per_s;
  } else if (gemm != nullptr && precision == Precision::kTf32 && card.tf32_flops_per_s > 0) {
    max = card.tf32_flops_per_s;
  }
  const std::optional<ProductSize> product = product_of(op);
  return product ? max * product_share(*product, max, card) : max;
}

double roofline_s(const DeviceOp& op, const MachineCard& card, Precision precision) {
  const Cost cost = cost_of(op);
  return std::max(static_cast<double>(cost.flops) / flops_per_s(op, card, precision),
                  static_cast<double>(cost.bytes) / card.memory_bytes_per_s);
}

/// Seconds of an op; if it was not measured as it runs here, by the rates of its label, and if its
/// kind was not, by the rate of copies.
double measured_s(const DeviceOp& op, const MachineLoad& load) {
  OpSize size = size_of(op);
  if (const double own_s = op_s(size, load.rates); own_s > 0) return own_s;
  size.op = label_of(op);
  if (const double label_s = op_s(size, load.rates); label_s > 0) return label_s;
  const auto bytes = static_cast<double>(cost_of(op).bytes);
  return op_s({.op = "copy", .width = bytes, .work = bytes}, load.rates);
}

double device_op_s(const DeviceOp& op, const MachineCard& card, const MachineLoad* load,
                   Precision precision) {
  if (load == nullptr) return roofline_s(op, card, precision) + card.launch_s + delay_s(op);
  return std::max(measured_s(op, *load), load->launch_s) + delay_s(op);
}

/// A collective between devices of one process in their shared memory: a copy for each device, a
/// sum of each on the root, or both.
double in_memory_s(const Collective& collective, const Tensor& tensor, std::size_t devices,
                   const MachineCard& card, const MachineLoad* load) {
  const Tensor row{tensor.buffer, tensor.offset_bytes, 1, tensor.size(), tensor.dtype};
  const double copy_each_s =
      device_op_s(Copy{.to = row, .from = row}, card, load, Precision::kFp32);
  const double sums_s =
      static_cast<double>(devices - 1) *
      device_op_s(SumRows{.out = row, .in = row, .beta = 1}, card, load, Precision::kFp32);
  switch (exchange_kind_of(collective)) {
    case ExchangeKind::kBroadcast:
    case ExchangeKind::kAllGather:
      return copy_each_s;
    case ExchangeKind::kReduce:
    case ExchangeKind::kReduceScatter:
      return sums_s;
    case ExchangeKind::kAllReduce:
    case ExchangeKind::kSendReceive:  // not within a process
      break;
  }
  return sums_s + copy_each_s;
}

double collective_s(const Collective& collective, const MachineCard& card, const NodeSetting& run,
                    const MachineLoad* load) {
  const Axis axis = axis_of(collective);
  const auto with = [&](std::int64_t bytes, int ranks) {
    return exchange_s(card, exchange_kind_of(collective), static_cast<double>(bytes), ranks,
                      run.mesh.span_of(axis));
  };
  return std::visit(
      Overloaded{[&](const SendReceive& exchange) {
                   // Both directions of a link at once.
                   return with(std::max(exchange.sent_bytes(), exchange.received_bytes()), 2);
                 },
                 [&](const auto& op) {
                   // Among all devices of one process if it has several, otherwise among all ranks.
                   const Tensor& tensor = op.tensors.front();
                   const auto devices = static_cast<int>(op.tensors.size());
                   if (devices > 1 && !card.on_gpu) {
                     return in_memory_s(collective, tensor, op.tensors.size(), card, load);
                   }
                   return with(tensor.bytes(), std::max(devices, run.mesh.size_of(axis)));
                 }},
      collective);
}

/// The number of lanes of one process that run at full speed at once.
double lanes_at_once(const Workload& workload, const MachineCard& card) {
  const auto cores = static_cast<double>(card.node_ranks);
  if (card.on_gpu || workload.trainer == TrainerKind::kSingle) {
    return std::numeric_limits<double>::infinity();
  }
  return workload.trainer == TrainerKind::kDdp ? cores / workload.ranks : cores;
}

/// A copy that crosses a link between GPUs; nothing for other ops.
const Copy* copy_between_gpus(const Program& program, const Node& node, const MachineCard& card) {
  const auto* op = std::get_if<DeviceOp>(&node.op);
  const auto* copy = op == nullptr ? nullptr : std::get_if<Copy>(op);
  if (copy == nullptr || !card.on_gpu || !card.node.is_known()) return nullptr;
  const Buffers& buffers = program.buffers();
  const Buffer &to = buffers[copy->to.buffer], &from = buffers[copy->from.buffer];
  return to.device == from.device || to.pinned || from.pinned ? nullptr : copy;
}

}  // namespace

double device_op_s(const DeviceOp& op, const MachineCard& card, const NodeSetting& run) {
  return device_op_s(op, card, card.load_of(run.mesh.ranks(), run.threads), run.precision);
}

double node_s(const Program& program, const Node& node, const MachineCard& card,
              const NodeSetting& run) {
  const MachineLoad* load = card.load_of(run.mesh.ranks(), run.threads);
  if (const auto* collective = std::get_if<Collective>(&node.op)) {
    return collective_s(*collective, card, run, load);
  }
  if (const Copy* copy = copy_between_gpus(program, node, card)) {
    return copy_s(card, static_cast<double>(copy->to.bytes()));
  }
  return device_op_s(std::get<DeviceOp>(node.op), card, run);
}

SimulatedStep predicted_run(const Workload& workload, const MachineCard& card) {
  const TrainConfig& config = workload.config;
  const int all_cores = config.device.threads.value_or(card.node_ranks);
  const std::optional<SlowRank>& slow = config.injected.slow_rank;
  const int rank = slow ? static_cast<int>(slow->rank) : 0;
  const WorkloadPrograms programs(workload, rank);
  const NodeSetting run{.mesh = programs.mesh(),
                        .threads = card.on_gpu ? 0 : all_cores,
                        .precision = config.device.precision};
  const Program& program = programs.step();
  const MachineLoad* load = card.load_of(run.mesh.ranks(), run.threads);
  const auto sends_from = [&](const Node& node) -> std::optional<int> {
    const Copy* copy = copy_between_gpus(program, node, card);
    if (copy == nullptr) return std::nullopt;
    return program.buffers()[copy->from.buffer].device;
  };
  SimulatedStep step =
      simulate(program, [&](const Node& node) { return node_s(program, node, card, run); },
               {.at_once = lanes_at_once(workload, card),
                .contention = load == nullptr ? 1 : load->contention,
                .kernel_slowdown = card.on_gpu ? card.links_of(workload.ranks).kernel_slowdown : 1,
                .sends_from = sends_from});
  if (rank != 0) {
    const double waited_s = 1e-3 * slow->delay_ms;
    step.phase_s[Phase::kInjected] -= waited_s;
    step.phase_s[Phase::kCommunication] += waited_s;
  }
  step.step_s += load == nullptr ? card.host_s : load->host_s;
  if (config.data.workers > 0) {
    step.step_s = std::max(step.step_s, 1e-3 * config.data.io_delay_ms / config.data.workers);
  }
  return step;
}

}  // namespace barestep
