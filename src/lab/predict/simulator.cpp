#include "lab/predict/simulator.h"

#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#include "core/error.h"
#include "core/index.h"
#include "core/ops.h"
#include "train/schedule.h"

namespace barestep {
namespace {

bool is_pause(const Node& node) {
  const auto* device_op = std::get_if<DeviceOp>(&node.op);
  return device_op != nullptr && std::holds_alternative<Delay>(*device_op);
}

/// A copy from one device of a process to another; null for other ops.
const Copy* copy_between_devices(const Program& program, const Node& node) {
  const auto* const copy = op_if<Copy>(node.op);
  if (copy == nullptr) return nullptr;
  const Buffer &to = program.buffers()[copy->to.buffer],
               &from = program.buffers()[copy->from.buffer];
  return to.device == from.device || to.pinned || from.pinned ? nullptr : copy;
}

/// Simulates a step of several ranks, event by event. What ranks do together is one task.
class Simulation {
 public:
  Simulation(std::span<const RankProgram> ranks, const NodeSeconds& seconds, const Sharing& sharing)
      : ranks_(ranks),
        sharing_(sharing),
        task_of_(ranks.size()),
        exchanging_(ranks.size()),
        steps_(ranks.size()) {
    for (std::size_t place = 0; place < ranks.size(); ++place) {
      const Program& program = ranks[place].program;
      steps_[place].spans.resize(static_cast<std::size_t>(program.size()));
      std::map<Meeting, std::size_t> met;
      std::map<LaneId, std::size_t> last_on_lane;
      std::size_t input = kNoTask;  // the last one
      for (NodeId id = 0; id < program.size(); ++id) {
        const Node& node = program.node(id);
        const bool is_input = node.phase == Phase::kData;
        task_of_[place].push_back(is_input ? kNoTask : task_for(place, node, met, seconds));
        if (!is_input) add_part(place, id, last_on_lane);
        if (!is_input || !sharing.makes_input) continue;
        const std::size_t task = new_task(place, node, seconds);
        add_wait(task, std::exchange(input, task));
      }
    }
  }

  void run_until_stuck() {
    for (std::size_t task = 0; task < tasks_.size(); ++task) start_if_ready(task);
    while (!running_.empty()) advance();
  }

  std::vector<std::vector<NodeSpan>> spans_until_stuck() {
    run_until_stuck();
    for (const Task& task : tasks_) {
      if (task.is_done) continue;
      for (const TaskPart& part : task.parts) {
        span_of(part).end_s = std::numeric_limits<double>::infinity();
      }
    }
    std::vector<std::vector<NodeSpan>> spans;
    for (SimulatedStep& step : steps_) spans.push_back(std::move(step.spans));
    return spans;
  }

  std::vector<SimulatedStep> run() {
    run_until_stuck();
    BARESTEP_REQUIRE(std::ranges::all_of(tasks_, [](const Task& task) { return task.is_done; }),
                     "a program's nodes wait for each other");
    for (std::size_t place = 0; place < ranks_.size(); ++place) account(place);
    return std::move(steps_);
  }

 private:
  using DeviceOfRank = std::pair<std::size_t, int>;
  /// Ranks that meet, and what for: all of an axis, by the first of them, or two that exchange.
  struct Meeting {
    Axis axis = Axis::kAll;
    int first = 0, other = 0;  // the same unless they exchange
    std::string_view name{};

    [[nodiscard]] bool has(const Mesh& mesh) const {
      return first == other ? mesh.first_on(axis) == first
                            : mesh.rank == first || mesh.rank == other;
    }
    friend auto operator<=>(const Meeting&, const Meeting&) = default;
  };
  static constexpr std::size_t kNoTask = std::numeric_limits<std::size_t>::max();

  /// A node in one rank's program.
  struct TaskPart {
    std::size_t place = 0;  // of the rank
    NodeId node = 0;
  };
  struct Task {
    std::size_t place = 0;  // of a rank that runs it
    double left_s = 0;      // of its work, at full speed
    double wakes_s = 0;     // left before it begins, while it wakes up
    bool is_pause = false, is_collective = false, wakes_up = false;
    std::optional<DeviceOfRank> sender{};  // the device whose link it could fill
    std::vector<TaskPart> parts{};         // of the step: none of the next step's input
    std::size_t awaited = 0;           // tasks that must end, and ranks that must come, before it
    std::vector<std::size_t> after{};  // tasks that wait for it
    bool is_done = false;
  };

  /// A new task, or the one that another rank's program has brought. `met` counts the rank's
  /// collectives of each group and name. They wait for all given ranks.
  std::size_t task_for(std::size_t place, const Node& node, std::map<Meeting, std::size_t>& met,
                       const NodeSeconds& seconds) {
    const auto* const collective = std::get_if<Collective>(&node.op);
    if (collective == nullptr) return new_task(place, node, seconds);
    const Meeting meeting = meeting_of(ranks_[place].mesh, *collective);
    std::vector<std::size_t>& tasks = tasks_of_[meeting];
    const std::size_t number = met[meeting]++;
    if (number == tasks.size()) {
      tasks.push_back(new_task(place, node, seconds));
      tasks_.back().awaited = static_cast<std::size_t>(std::ranges::count_if(
          ranks_, [&](const RankProgram& rank) { return meeting.has(rank.mesh); }));
    }
    return tasks[number];
  }

  static Meeting meeting_of(const Mesh& mesh, const Collective& collective) {
    const int first = mesh.first_on(axis_of(collective));
    Meeting meeting{axis_of(collective), first, first, name_of(collective)};
    if (std::holds_alternative<SendReceive>(collective)) {
      const std::vector<int> ranks = ranks_that_meet(mesh, collective);
      meeting.first = ranks.front();
      meeting.other = ranks.back();
    }
    return meeting;
  }

  std::size_t new_task(std::size_t place, const Node& node, const NodeSeconds& seconds) {
    const Program& program = ranks_[place].program;
    const Copy* const copy = sharing_.by_links ? copy_between_devices(program, node) : nullptr;
    tasks_.push_back({.place = place,
                      .left_s = seconds(program, node),
                      .is_pause = is_pause(node),
                      .is_collective = std::holds_alternative<Collective>(node.op)});
    if (copy != nullptr) {
      tasks_.back().sender = {place, program.buffers()[copy->from.buffer].device};
    }
    return tasks_.size() - 1;
  }

  /// The node comes after the last one on each of its lanes, and after what it waits for.
  void add_part(std::size_t place, NodeId id, std::map<LaneId, std::size_t>& last_on_lane) {
    const Program& program = ranks_[place].program;
    const std::size_t task = at(task_of_[place], id);
    tasks_[task].parts.push_back({place, id});
    if (tasks_[task].is_collective) --tasks_[task].awaited;
    for (const LaneId& lane : lanes_of(program, program.node(id))) {
      const auto [last, is_first] = last_on_lane.try_emplace(lane, task);
      if (is_first) continue;
      add_wait(task, last->second);
      last->second = task;
    }
    for (const Wait& wait : program.node(id).waits) {
      if (wait.steps_back == 0) add_wait(task, at(task_of_[place], wait.node));
    }
  }

  void add_wait(std::size_t task, std::size_t before) {
    if (before == kNoTask) return;
    tasks_[before].after.push_back(task);
    ++tasks_[task].awaited;
  }

  void start_if_ready(std::size_t task, const Task* last_awaited = nullptr) {
    if (tasks_[task].awaited > 0) return;
    running_.push_back(task);
    const double waking_s = last_awaited == nullptr ? 0 : waking_s_of(tasks_[task], *last_awaited);
    if (waking_s == 0) return begin(tasks_[task]);
    tasks_[task].wakes_up = true;
    tasks_[task].wakes_s = waking_s;
  }

  void begin(Task& task) {
    for (const TaskPart& part : task.parts) span_of(part).begin_s = now_s_;
    count(task, 1);
  }

  [[nodiscard]] bool lanes_sleep() const { return sharing_.wake_s > 0 || !sharing_.wakes.empty(); }

  /// What the lanes of a task need to go on, on a rank that the other ones of the task waited for.
  [[nodiscard]] double waking_s_of(const Task& task, const Task& last_awaited) const {
    if (!lanes_sleep()) return 0;
    double longest_s = 0;
    for (const TaskPart& part : task.parts) {
      const auto last = std::ranges::find(last_awaited.parts, part.place, &TaskPart::place);
      if (last == last_awaited.parts.end()) continue;
      const Program& program = ranks_[part.place].program;
      const int device = lanes_of(program, program.node(last->node)).front().device;
      for (const LaneId& lane : lanes_of(program, program.node(part.node))) {
        const auto end = lane_ends_s_.find({part.place, lane});
        const double slept_s = now_s_ - (end == lane_ends_s_.end() ? 0 : end->second);
        if (slept_s <= kSpinS) continue;
        longest_s = std::max(
            longest_s, lane.device == device ? sharing_.wake_s : wake_s(sharing_.wakes, slept_s));
      }
    }
    return longest_s;
  }

  [[nodiscard]] NodeSpan& span_of(const TaskPart& part) {
    return at(steps_[part.place].spans, part.node);
  }

  /// What the tasks that run take of what they share: `change` is 1 when it begins and -1 at its
  /// end.
  void count(const Task& task, int change) {
    if (task.sender) senders_[*task.sender] += change;
    const auto lanes = std::max<int>(static_cast<int>(task.parts.size()), 1);
    if (!task.is_pause) working_ += change * lanes;
    if (!task.is_collective) return;
    for (const TaskPart& part : task.parts) exchanging_[part.place] += change;
  }

  /// Work that a running task does per second.
  [[nodiscard]] double speed_of(const Task& task) const {
    if (task.is_pause || task.wakes_up) return 1;
    if (task.sender) return 1.0 / senders_.at(*task.sender);
    const double count = working_;
    const double all =
        count > sharing_.at_once ? sharing_.at_once / count / sharing_.contention : 1;
    if (task.is_collective) return all;
    return exchanging_[task.place] > 0 ? all / sharing_.kernel_slowdown : all;
  }

  /// Advances to the next end of a task.
  void advance() {
    std::size_t first = running_.front();
    double passed_s = std::numeric_limits<double>::infinity();
    speeds_.clear();
    for (const std::size_t task : running_) {
      speeds_.push_back(speed_of(tasks_[task]));
      const double left_s = left_of(tasks_[task]) / speeds_.back();
      if (left_s >= passed_s) continue;
      first = task;
      passed_s = left_s;
    }
    now_s_ += passed_s;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      left_of(tasks_[running_[i]]) -= passed_s * speeds_[i];
    }
    if (std::exchange(tasks_[first].wakes_up, false)) return begin(tasks_[first]);
    std::erase(running_, first);
    end(first);
  }

  void end(std::size_t ended) {
    count(tasks_[ended], -1);
    tasks_[ended].is_done = true;
    if (!tasks_[ended].parts.empty()) worked_until_s_ = now_s_;
    for (const TaskPart& part : tasks_[ended].parts) {
      span_of(part).end_s = now_s_;
      if (!lanes_sleep()) continue;
      const Program& program = ranks_[part.place].program;
      for (const LaneId& lane : lanes_of(program, program.node(part.node))) {
        lane_ends_s_[{part.place, lane}] = now_s_;
      }
    }
    for (const std::size_t task : tasks_[ended].after) {
      --tasks_[task].awaited;
      start_if_ready(task, &tasks_[ended]);
    }
  }

  static double& left_of(Task& task) { return task.wakes_up ? task.wakes_s : task.left_s; }

  /// All ranks are taken to end with the last one, as their step does at the loss or at the next
  /// step; and that no sooner than the next step's input is there.
  void account(std::size_t place) {
    SimulatedStep& step = steps_[place];
    const auto& [program, mesh] = ranks_[place];
    step.step_s = now_s_;
    step.account = account_of(timeline_of(program, step), kMainLane);
    step.account[mesh.pipeline > 1 ? Part::kOtherStages : Part::kExposedCommunication] +=
        worked_until_s_ - step.account.wall_s;
    step.account[Part::kDataWait] += now_s_ - worked_until_s_;
    step.account.wall_s = step.step_s;
  }

  std::span<const RankProgram> ranks_;
  Sharing sharing_;
  std::vector<Task> tasks_;
  std::map<Meeting, std::vector<std::size_t>> tasks_of_;
  std::vector<std::vector<std::size_t>> task_of_;  // by rank's place and node; kNoTask for input
  std::vector<std::size_t> running_;
  std::vector<double> speeds_;           // of them
  int working_ = 0;                      // parts of running tasks that are no pauses
  std::vector<int> exchanging_;          // collectives of each rank that run
  std::map<DeviceOfRank, int> senders_;  // running tasks that send from a device
  std::map<std::pair<std::size_t, LaneId>, double> lane_ends_s_;  // of each rank, if lanes sleep
  double now_s_ = 0, worked_until_s_ = 0;                         // on the step itself
  std::vector<SimulatedStep> steps_;
};

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
  const auto rounds = [](std::int64_t size, std::int64_t step) { return (size + step - 1) / step; };
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
    if (pieces > 1 && number_of(pieces) * partial_sums_s >= min_s) break;  // and so do more of them
    const double seconds = number_of(rounds(tiles * pieces, card.multiprocessors)) *
                           number_of(rounds(product.depth, pieces)) * tile_s;
    min_s = std::min(min_s, pieces == 1 ? seconds : seconds + number_of(pieces) * partial_sums_s);
  }
  return min_s;
}

/// Attention in the standard form on a GPU: a kernel for each product, which reads or writes all
/// scores, and one that reads and writes them `passes` times for the softmax or its gradient.
double standard_attention_s(const Cost& cost, const Tensor& scores, int products, int passes,
                            const MachineCard& card) {
  const double product_s = static_cast<double>(cost.flops) / card.flops_per_s / products;
  const double pass_s = static_cast<double>(scores.bytes()) / card.memory_bytes_per_s;
  return products * std::max(product_s, pass_s) + passes * pass_s + products * card.launch_s;
}

/// Seconds of an op; if it was not measured as it runs here, by the rates of its label, and if its
/// kind was not, by the rate of copies. Attention, by that of products if they take longer.
double unfused_s(const DeviceOp& op, const MachineLoad& load, const Reach& reach) {
  OpSize size = size_of(op);
  const bool is_product = product_of(op).has_value();
  size.reach = is_product ? reach.bytes : size.width * reach.ratio();
  if (const double own_s = op_s(size, load.rates); own_s > 0) return own_s;
  size.op = label_of(op);
  if (const double label_s = op_s(size, load.rates); label_s > 0) return label_s;
  const Cost cost = cost_of(op);
  const auto bytes = static_cast<double>(cost.bytes);
  const double copy_s = op_s(
      {.op = "copy", .width = bytes, .work = bytes, .reach = bytes * reach.ratio()}, load.rates);
  const bool multiplies =
      std::holds_alternative<Attention>(op) || std::holds_alternative<AttentionGrad>(op);
  const double flops_per_s = multiplies ? fastest_product(load) : 0;
  return flops_per_s == 0 ? copy_s
                          : std::max(copy_s, static_cast<double>(cost.flops) / flops_per_s);
}

/// The same; products are measured with a ReLU, and other activations in them add what was measured
/// or, on older cards, as much as they do alone.
double measured_s(const DeviceOp& op, const MachineLoad& load, const Reach& reach) {
  const auto* const gemm = std::get_if<Gemm>(&op);
  const double seconds = unfused_s(op, load, reach);
  if (gemm == nullptr || gemm->activation == Activation::kNone) return seconds;
  const double added_s = op_s(added_to_product(gemm->c, gemm->activation), load.rates);
  if (added_s > 0) return seconds + added_s;
  BiasActivation alone{.values = gemm->c, .activation = gemm->activation};
  const double own_s = op_s(size_of(alone), load.rates);
  alone.activation = Activation::kRelu;
  return seconds + std::max(0.0, own_s - op_s(size_of(alone), load.rates));
}

/// Whether copies between its devices cross links.
bool has_links(const MachineCard& card) {
  return card.on_gpu && card.node.is_known();
}

/// The seconds of a run's nodes. A product's share and an exchange are calculated once for each
/// size, since a search for a mesh asks for those of millions of nodes.
class NodePrices {
 public:
  NodePrices(const MachineCard& card, const NodeSetting& run)
      : card_(card), run_(run), load_(card.load_of(run.mesh.ranks(), run.threads)) {}

  double of(const Program& program, const Node& node) {
    if (const auto* collective = std::get_if<Collective>(&node.op)) {
      return of(*collective, reach_of(program, node));
    }
    const Copy* const copy = has_links(card_) ? copy_between_devices(program, node) : nullptr;
    if (copy != nullptr) return copy_s(card_, static_cast<double>(copy->to.bytes()));
    const bool is_alone = run_.updates_alone && node.phase == Phase::kOptimizer;
    return of(std::get<DeviceOp>(node.op), is_alone ? card_.load_of(1, run_.threads) : load_,
              reach_of(program, node));
  }

  double of(const DeviceOp& op) { return of(op, load_, {}); }

 private:
  /// Only measured machines have rates that depend on it.
  Reach reach_of(const Program& program, const Node& node) {
    if (load_ == nullptr) return {};
    std::vector<Reach>& reaches = reaches_[&program];
    if (reaches.empty()) reaches = reaches_of(program);
    return at(reaches, &node - program.nodes().data());
  }

  double of(const DeviceOp& op, const MachineLoad* load, const Reach& reach) {
    const auto* const delay = std::get_if<Delay>(&op);
    const double pause_s = delay == nullptr ? 0 : delay->seconds;
    if (load == nullptr) return roofline_s(op) + card_.launch_s + pause_s;
    return std::max(measured_s(op, *load, reach), load->launch_s) + pause_s;
  }

  double of(const Collective& collective, const Reach& reach) {
    const auto with = [&](std::int64_t bytes, int ranks) {
      return of_exchange(exchange_kind_of(collective), bytes, ranks,
                         run_.mesh.span_of(axis_of(collective)));
    };
    return std::visit(
        Overloaded{[&](const SendReceive& exchange) {
                     // Both directions of a link at once.
                     return with(std::max(exchange.sent_bytes(), exchange.received_bytes()), 2);
                   },
                   [&](const auto& op) {
                     // Among all devices of a process if it has several, else among all ranks.
                     const auto devices = static_cast<int>(op.tensors.size());
                     if (devices > 1 && !card_.on_gpu) {
                       return in_memory_s(collective, op.tensors.front(), devices, reach);
                     }
                     return with(op.tensors.front().bytes(),
                                 std::max(devices, run_.mesh.size_of(op.axis)));
                   }},
        collective);
  }

  double of_exchange(ExchangeKind exchange, std::int64_t bytes, int ranks, int span) {
    const auto [found, is_new] = exchanges_.try_emplace({exchange, bytes, ranks, span});
    if (is_new) {
      found->second = exchange_s(card_, exchange, static_cast<double>(bytes), ranks, span);
    }
    return found->second;
  }

  double flops_per_s(const DeviceOp& op) {
    const auto* const gemm = std::get_if<Gemm>(&op);
    double max = card_.flops_per_s;
    if (gemm != nullptr && gemm->a.dtype != DType::kF32 && card_.flops_of(gemm->a.dtype) > 0) {
      max = card_.flops_of(gemm->a.dtype);
    } else if (gemm != nullptr && run_.precision == Precision::kTf32 &&
               card_.tf32_flops_per_s > 0) {
      max = card_.tf32_flops_per_s;
    }
    const std::optional<ProductSize> product = product_of(op);
    if (!product) return max;
    const auto [share, is_new] = shares_.try_emplace({*product, max});
    if (is_new) share->second = product_share(*product, max, card_);
    return max * share->second;
  }

  double roofline_s(const DeviceOp& op) {
    Cost cost = cost_of(op);
    // Our kernels do without tensor cores (kernels/cuda/attention.cu).
    if (const auto* const forward = std::get_if<Attention>(&op);
        forward != nullptr && forward->shape.form == AttentionForm::kStandard) {
      return standard_attention_s(cost, forward->kept, 2, 2, card_);
    }
    if (const auto* const backward = std::get_if<AttentionGrad>(&op)) {
      if (backward->shape.form == AttentionForm::kStandard) {
        return standard_attention_s(cost, backward->kept, 4, 3, card_);
      }
      // Two kernels, for keys and for queries, both of which compute scores and their gradients:
      // seven products, where a count of flops has five.
      cost.flops = cost.flops / 5 * 7;
    }
    return std::max(static_cast<double>(cost.flops) / flops_per_s(op),
                    static_cast<double>(cost.bytes) / card_.memory_bytes_per_s);
  }

  /// A collective between devices of one process in their shared memory: a copy for each device, a
  /// sum of each on the root, or both. The others wait meanwhile.
  double in_memory_s(const Collective& collective, const Tensor& tensor, int devices,
                     const Reach& reach) {
    const Tensor row{tensor.buffer, tensor.offset_bytes, 1, tensor.size(), tensor.dtype};
    const MachineLoad* alone = card_.load_of(1, run_.threads);
    const double copy_each_s = of(Copy{.to = row, .from = row}, alone, reach);
    const double sums_s =
        (devices - 1) * of(SumRows{.out = row, .in = row, .beta = 1}, alone, reach);
    const ExchangeKind kind = exchange_kind_of(collective);
    const bool only_copies = kind == ExchangeKind::kBroadcast || kind == ExchangeKind::kAllGather;
    const bool only_adds = kind == ExchangeKind::kReduce || kind == ExchangeKind::kReduceScatter;
    return (only_copies ? 0 : sums_s) + (only_adds ? 0 : copy_each_s);
  }

  const MachineCard& card_;
  NodeSetting run_;
  const MachineLoad* load_;
  std::map<std::pair<ProductSize, double>, double> shares_;
  std::map<const Program*, std::vector<Reach>> reaches_;
  std::map<std::tuple<ExchangeKind, std::int64_t, int, int>, double> exchanges_;
};

/// The number of lanes of one process that run at full speed at once.
double lanes_at_once(const Run& workload, const MachineCard& card) {
  const auto cores = static_cast<double>(card.node_ranks);
  if (card.on_gpu || workload.scheme() == SchemeKind::kSingle) {
    return std::numeric_limits<double>::infinity();
  }
  return workload.has_ranks() ? cores / workload.ranks : cores;
}

/// The longest pause before backward of `count` ranks from `first` on, which wait for each other
/// after every step or, with local SGD, round: the mean of a run's steps after warm-up.
double longest_pause_s(const Run& workload, int first, int count) {
  constexpr std::int64_t kMostSteps = 1000;
  const InjectedConfig& injected = workload.config.injected;
  const std::int64_t begin = first_measured_step(workload.config.training, workload.steps());
  const std::int64_t end = std::min(workload.steps(), begin + kMostSteps);
  const auto round_of = [&](std::int64_t step) {
    const std::int64_t every = workload.config.parallel.sync_every;
    return step / every - begin / every;
  };
  std::vector<double> longest_s(static_cast<std::size_t>(round_of(end - 1) + 1));
  for (int rank = first; rank < first + count; ++rank) {
    const bool is_slow = injected.slow_rank && injected.slow_rank->rank == rank;
    const double told_ms = injected.delay_ms + (is_slow ? injected.slow_rank->delay_ms : 0);
    Jitter jitter(1e-3 * injected.jitter_ms, rank);
    std::vector<double> own_s(longest_s.size());
    for (std::int64_t step = 0; step < end; ++step) {
      const double pause_s = 1e-3 * told_ms + jitter.next_s();
      if (step >= begin) at(own_s, round_of(step)) += pause_s;
    }
    std::ranges::transform(longest_s, own_s, longest_s.begin(),
                           [](double longest, double own) { return std::max(longest, own); });
  }
  return std::accumulate(longest_s.begin(), longest_s.end(), 0.0) /
         static_cast<double>(end - begin);
}

/// The ranks that wait for each other in a stage, among which one is as slow as the slowest.
int ranks_of_stage(const Run& workload) {
  return workload.has_ranks() ? mesh_of(workload).ranks_of_stage() : 1;
}

/// Where rank 0 waits for ranks that pause longer, which were simulated in its place.
void wait_for_pauses(const Run& workload, StepAccount& account) {
  const auto of_first = [&](int count) { return longest_pause_s(workload, 0, count); };
  const double own_s = of_first(1), all_s = of_first(ranks_of_stage(workload));
  const double tensor_s = workload.has_ranks() ? of_first(mesh_of(workload).tensor) : own_s;
  account[Part::kInjected] -= all_s - own_s;
  account[Part::kTensorRanks] += tensor_s - own_s;
  account[Part::kExposedCommunication] += all_s - tensor_s;
}

/// The steps of these ranks, or of local SGD those without an average.
std::vector<SimulatedStep> simulated_ranks(const Run& workload, const MachineCard& card,
                                           const RankPrograms& programs, bool are_local,
                                           const NodeSetting& run) {
  const std::span<const int> ranks = programs.ranks();
  std::vector<RankProgram> all;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const WorkloadPrograms& own = programs.of(i);
    all.push_back({are_local ? own.local_step() : own.step(), run.mesh.with_rank(ranks[i])});
  }
  // A rank of each stage pauses as long as the one that all wait for.
  std::map<const Program*, double> longest_s;
  for (const RankProgram& rank : all) {
    if (workload.config.injected.jitter_ms == 0) continue;
    const int count = ranks_of_stage(workload);
    longest_s[&rank.program] = longest_pause_s(workload, rank.mesh.stage() * count, count);
  }
  NodePrices prices(card, run);
  const auto seconds = [&](const Program& program, const Node& node) {
    const Delay* const pause = op_if<Delay>(node.op);
    const bool is_drawn = pause != nullptr && pause->more_seconds;
    return is_drawn ? longest_s.at(&program) : prices.of(program, node);
  };
  return simulate(all, seconds, sharing_of(workload, card, ranks.size()));
}

/// The mean of steps of which this share are as `other`.
void mix(SimulatedStep& step, const SimulatedStep& other, double share) {
  const auto add = [share](double& mean, double figure) { mean += share * (figure - mean); };
  add(step.step_s, other.step_s);
  add(step.account.wall_s, other.account.wall_s);
  add(step.account.hidden_communication_s, other.account.hidden_communication_s);
  for (const Part part : kValuesOf<Part>) add(step.account[part], other.account[part]);
}

/// Steps without an average. Their ranks are not in step: another one updates at the same time by
/// chance, as often as it updates at all.
std::vector<SimulatedStep> local_ranks(const Run& workload, const MachineCard& card,
                                       const RankPrograms& programs) {
  NodeSetting run = setting_of(workload, card);
  const auto together = simulated_ranks(workload, card, programs, true, run);
  run.updates_alone = true;
  auto steps = simulated_ranks(workload, card, programs, true, run);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const SimulatedStep& other = together[i];
    mix(steps[i], other, other.account[Part::kOptimizer] / other.step_s);
  }
  return steps;
}

/// A figure of a load by step; of local SGD the mean, where steps without an average are those of a
/// rank alone.
double mean_of_round(const Run& workload, const MachineCard& card, double MachineLoad::*figure) {
  const MachineLoad& load = *load_of(workload, card);
  const double local = card.load_of(1, load.threads)->*figure;
  return local + (load.*figure - local) / number_of(workload.config.parallel.sync_every);
}

SimulatedStep predicted_as(const Run& workload, const MachineCard& card,
                           const RankPrograms& programs) {
  const TrainConfig& config = workload.config;
  const NodeSetting run = setting_of(workload, card);
  const std::span<const int> ranks = programs.ranks();
  const std::vector<SimulatedStep> steps = predicted_ranks(workload, card, programs);
  SimulatedStep step = steps.front();
  for (int stage = 0; stage < run.mesh.pipeline; ++stage) {
    step.stages.push_back(at(steps, stage).account);
  }
  const InjectedConfig& injected = config.injected;
  const bool is_slow = injected.slow_rank && injected.slow_rank->rank == ranks.front();
  if (is_slow || injected.jitter_ms > 0) wait_for_pauses(workload, step.account);
  step.account[Part::kHost] = card.host_s;
  if (load_of(workload, card) != nullptr) {
    step.account[Part::kHost] = mean_of_round(workload, card, &MachineLoad::host_s);
    // The host sleeps until the step ends, and lanes until the host queues the next one.
    const double wakes_s = 2 * mean_of_round(workload, card, &MachineLoad::wake_s);
    step.account[Part::kIdle] += wakes_s;
    step.step_s += wakes_s;
  }
  step.step_s += step.account[Part::kHost];
  if (config.data.workers > 0) {
    const double loading_s = 1e-3 * config.data.io_delay_ms / config.data.workers;
    step.account[Part::kDataWait] += std::max(0.0, loading_s - step.step_s);
    step.step_s = std::max(step.step_s, loading_s);
  }
  step.account.wall_s = step.step_s;
  return step;
}

}  // namespace

Timeline timeline_of(const Program& program, const SimulatedStep& step) {
  const auto plan = std::make_shared<RunPlan>(program, RunDetail::kNodes);
  StepTimeline as_measured{.plan = plan};
  for (const NodeRun& run : plan->runs()) {
    // A lane reaches a collective before the others do.
    double reached_s = run.previous ? as_measured.spans[*run.previous].end_s : 0;
    for (const NodeRun::AwaitedPart& awaited : run.awaited) {
      if (awaited.steps_back > 0) continue;
      reached_s = std::max(reached_s, at(step.spans, awaited.node).end_s);
    }
    const NodeSpan& own = at(step.spans, run.first);
    const double end_s = own.end_s;
    // A lane that sleeps reaches a node later.
    if (!run.is_collective) reached_s = std::max(reached_s, own.begin_s);
    as_measured.spans.push_back({.begin_s = std::min(reached_s, end_s), .end_s = end_s});
    as_measured.host.end_s = std::max(as_measured.host.end_s, end_s);
  }
  Timeline timeline;
  timeline.add(std::move(as_measured));
  return timeline;
}

std::vector<SimulatedStep> simulate(std::span<const RankProgram> ranks, const NodeSeconds& seconds,
                                    const Sharing& sharing) {
  return Simulation(ranks, seconds, sharing).run();
}

std::vector<std::vector<NodeSpan>> spans_until_stuck(std::span<const RankProgram> ranks,
                                                     const NodeSeconds& seconds) {
  return Simulation(ranks, seconds, {}).spans_until_stuck();
}

SimulatedStep simulate(const Program& program, const std::function<double(const Node&)>& seconds,
                       const Sharing& sharing) {
  const RankProgram alone{program, Mesh{}};
  const auto of_node = [&](const Program&, const Node& node) { return seconds(node); };
  return simulate(std::span(&alone, 1), of_node, sharing).front();
}

double product_share(const ProductSize& product, double flops_per_s, const MachineCard& card) {
  const double macs = number_of(product.rows) * number_of(product.cols) * number_of(product.depth);
  const bool is_of_vector = product.rows == 1 || product.cols == 1;
  if (card.multiprocessors == 0 || macs <= 0 || is_of_vector) return 1;
  double min_s = std::numeric_limits<double>::infinity();
  for (const GpuTile& tile : kGpuTiles) {
    min_s = std::min(min_s, tiled_s(product, tile, flops_per_s, card));
  }
  return 2 * macs / flops_per_s / min_s;
}

double device_op_s(const DeviceOp& op, const MachineCard& card, const NodeSetting& run) {
  return NodePrices(card, run).of(op);
}

double node_s(const Program& program, const Node& node, const MachineCard& card,
              const NodeSetting& run) {
  return NodePrices(card, run).of(program, node);
}

NodeSetting setting_of(const Run& workload, const MachineCard& card) {
  const DeviceConfig& device = workload.config.device;
  const SchemeKind scheme = workload.scheme();
  const bool in_turn = scheme == SchemeKind::kDataParallel || scheme == SchemeKind::kServer ||
                       workload.config.parallel.pipeline > 1;
  return {.mesh = mesh_of(workload),
          .threads = card.on_gpu ? 0 : device.threads.value_or(card.node_ranks),
          .precision = device.precision,
          .updates_alone = in_turn};
}

const MachineLoad* load_of(const Run& workload, const MachineCard& card) {
  const NodeSetting run = setting_of(workload, card);
  return card.load_of(run.mesh.ranks(), run.threads);
}

Sharing sharing_of(const Run& workload, const MachineCard& card, std::size_t count) {
  const MachineLoad* load = load_of(workload, card);
  return {.at_once = lanes_at_once(workload, card) * static_cast<double>(count),
          .contention = load == nullptr ? 1 : load->contention,
          .kernel_slowdown = card.on_gpu ? card.links_of(workload.ranks).kernel_slowdown : 1,
          .by_links = has_links(card),
          .makes_input = !card.on_gpu,
          .wake_s = load == nullptr ? 0 : load->wake_s,
          .wakes = load == nullptr ? Wakes{} : card.load_of(1, load->threads)->wakes};
}

std::vector<SimulatedStep> predicted_ranks(const Run& workload, const MachineCard& card,
                                           const RankPrograms& programs) {
  const NodeSetting run = setting_of(workload, card);
  std::vector<SimulatedStep> steps = simulated_ranks(workload, card, programs, false, run);
  const double every = number_of(workload.config.parallel.sync_every);
  if (every == 1) return steps;
  const auto local = local_ranks(workload, card, programs);
  for (std::size_t i = 0; i < steps.size(); ++i) mix(steps[i], local[i], (every - 1) / every);
  return steps;
}

SimulatedStep predicted_run(const Run& workload, const MachineCard& card) {
  return predicted_run(workload, card, RankPrograms(workload));
}

SimulatedStep predicted_run(const Run& workload, const MachineCard& card,
                            const RankPrograms& programs) {
  SimulatedStep step = predicted_as(workload, card, programs);
  if (!tries_updates(workload)) return step;
  Run separate = workload;
  separate.config.training.update = Update::kSeparate;
  SimulatedStep other = predicted_as(separate, card, RankPrograms(separate));
  return other.step_s < step.step_s ? other : step;
}

}  // namespace barestep
