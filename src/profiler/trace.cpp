#include "profiler/trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "core/clock.h"
#include "core/rank_checker.h"

namespace barestep {
namespace {

// The categories by which readers distinguish kinds of work.

bool is_pinned(const TimedOp& op, const Tensor& tensor) {
  return op.program->buffers()[tensor.buffer].pinned;
}

std::string copy_name(const TimedOp& op, const Copy& copy) {
  const Buffers& buffers = op.program->buffers();
  if (is_pinned(op, copy.from)) return "Memcpy HtoD (Pinned -> Device)";
  if (is_pinned(op, copy.to)) return "Memcpy DtoH (Device -> Pinned)";
  if (buffers[copy.from.buffer].device != buffers[copy.to.buffer].device) {
    return "Memcpy PtoP (Device -> Device)";
  }
  return "Memcpy DtoD (Device -> Device)";
}

struct Named {
  const char* category;
  std::string name;
  const char* call;  // the CUDA runtime call that would have queued it
};

Named named(const TimedOp& op) {
  if (const auto* collective = std::get_if<Collective>(&op.node->op)) {
    return {"kernel", names_of(*collective).kernel, "cudaLaunchKernelExC"};
  }
  const auto& device_op = std::get<DeviceOp>(op.node->op);
  if (const auto* copy = std::get_if<Copy>(&device_op)) {
    return {"gpu_memcpy", copy_name(op, *copy), "cudaMemcpyAsync"};
  }
  return {"kernel", std::string(label_of(op.node->op)), "cudaLaunchKernel"};
}

/// The shapes and types of a node's operands, in PyTorch's format.
TraceJson dims_of(const Node& node) {
  TraceJson dims = TraceJson::array();
  for (const Access& access : accesses_of(node.op)) {
    dims.push_back({access.tensor.rows, access.tensor.cols});
  }
  return dims;
}

/// A type's names among an op's arguments, among a collective's, and in NCCL's kernels.
struct TypeNames {
  const char *of_op, *of_collective, *of_kernel;
};
constexpr EnumArray<DType, TypeNames> kTypeNames = {{{{"float", "Float", "f32"},
                                                      {"c10::BFloat16", "BFloat16", "bf16"},
                                                      {"c10::Half", "Half", "f16"},
                                                      {"int", "Int", "i32"},
                                                      {"unsigned char", "Byte", "u8"},
                                                      {"signed char", "Char", "i8"}}}};

TraceJson types_of(const Node& node) {
  TraceJson types = TraceJson::array();
  for (const Access& access : accesses_of(node.op)) {
    types.push_back(kTypeNames[access.tensor.dtype].of_op);
  }
  return types;
}

/// Adds Kineto's arguments of a collective, in its order.
void add_collective_args(TraceJson& args, const TimedOp& op, const Collective& collective,
                         const TraceContext& context) {
  const DType dtype = parts_of(collective).front().front().tensor.dtype;
  const std::int64_t numbers = op.cost.message_bytes / bytes_of(dtype);
  const std::vector<int> ranks = ranks_that_meet(context.mesh, collective);
  const bool are_all = std::ssize(ranks) == context.mesh.ranks();
  args["Collective name"] = names_of(collective).collective;
  args["In msg nelems"] = numbers;
  args["Out msg nelems"] = numbers;
  args["Group size"] = ranks.size();
  args["dtype"] = kTypeNames[dtype].of_collective;
  args["In split size"] = "[]";
  args["Out split size"] = "[]";
  args["Process Group Name"] = are_all ? "0" : fmt::format("{}", fmt::join(ranks, ","));
  args["Process Group Description"] = are_all ? "default_pg" : name_of(axis_of(collective));
  args["Process Group Ranks"] = fmt::format("[{}]", fmt::join(ranks, ", "));
}

// Records from CUPTI.

/// Converts to microseconds, exact to the nanosecond.
double us(std::int64_t ns) {
  return static_cast<double>(ns) / 1e3;
}

constexpr std::int64_t kWarp = 32;
constexpr std::int64_t kMaxResidentBlocks = 32;  // per multiprocessor
constexpr std::int64_t kRegisterUnit = 8;      // a thread's registers are rounded up to a multiple
constexpr std::int64_t kOverheadProcess = -1;  // as in Kineto

std::int64_t product(const std::array<std::int64_t, 3>& extents) {
  return extents[0] * extents[1] * extents[2];
}

std::int64_t rounded_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// How many blocks fit on a multiprocessor at once, by CUDA's occupancy calculation without its
/// finer units.
std::int64_t active_blocks(const GpuActivity& kernel, const Multiprocessors& of) {
  const std::int64_t threads = std::max<std::int64_t>(1, product(kernel.block));
  std::int64_t blocks = std::min(kMaxResidentBlocks, of.threads / rounded_up(threads, kWarp));
  if (kernel.registers > 0) {
    const std::int64_t of_block =
        rounded_up(kernel.registers, kRegisterUnit) * rounded_up(threads, kWarp);
    blocks = std::min(blocks, of.registers / of_block);
  }
  if (kernel.shared_bytes > 0) blocks = std::min(blocks, of.shared_bytes / kernel.shared_bytes);
  return blocks;
}

void add_kernel_args(TraceJson& args, const GpuActivity& kernel, const Multiprocessors& of) {
  args["registers per thread"] = kernel.registers;
  args["shared memory"] = kernel.shared_bytes;
  double occupancy = 0;
  if (of.count > 0) {
    const double blocks = static_cast<double>(product(kernel.grid)) / of.count;
    const auto threads = static_cast<double>(product(kernel.block));
    args["blocks per SM"] = blocks;
    args["warps per SM"] = blocks * std::ceil(threads / kWarp);
    occupancy =
        std::min(static_cast<double>(active_blocks(kernel, of)), blocks) * threads / of.threads;
  }
  args["grid"] = kernel.grid;
  args["block"] = kernel.block;
  if (of.count > 0) {
    args["est. achieved occupancy %"] = std::min(100L, std::lround(100 * occupancy));
  }
}

void add_copy_args(TraceJson& args, std::int64_t bytes, TraceSpan span) {
  const auto ns = static_cast<double>(std::max<std::int64_t>(1, span.end_ns - span.begin_ns));
  args["bytes"] = bytes;
  args["memory bandwidth (GB/s)"] = static_cast<double>(bytes) / ns;
}

/// Kineto's members for a kernel, copy or fill, after those common to all work.
void add_activity_args(TraceJson& args, const GpuActivity& activity, TraceSpan span,
                       const Multiprocessors& multiprocessors) {
  if (activity.kind == GpuActivity::Kind::kKernel) {
    add_kernel_args(args, activity, multiprocessors);
  } else {
    add_copy_args(args, activity.bytes, span);
  }
  if (activity.graph_node > 0) args["graph node id"] = activity.graph_node;
  args["cuda stream"] = activity.stream;
  args["true duration (us)"] = us(std::llround(1e9 * (activity.end_s - activity.start_s)));
}

/// A piece of work with its row and span.
struct PlacedActivity {
  const GpuActivity* activity = nullptr;
  TraceRow row;
  TraceSpan span;
};

/// Work in one row may overlap if a kernel begins before the previous one has ended, and readers
/// drop overlapping work. Cuts the first at the start of the second.
void cut_overlaps(std::vector<PlacedActivity>& work) {
  const auto place = [](const PlacedActivity& placed) {
    return std::tuple(placed.row.tid, placed.span.begin_ns, placed.span.end_ns);
  };
  std::ranges::stable_sort(work, {}, place);
  for (std::size_t i = 1; i < work.size(); ++i) {
    PlacedActivity& before = work[i - 1];
    if (before.row.tid != work[i].row.tid) continue;
    before.span.end_ns = std::min(before.span.end_ns, work[i].span.begin_ns);
  }
}

/// CUPTI's own time, in a separate row.
void add_overhead(TraceEvents& events, const std::vector<GpuActivity>& activities,
                  const std::string& program) {
  std::vector<PlacedActivity> overhead;
  for (const GpuActivity& activity : activities) {
    if (activity.kind != GpuActivity::Kind::kOverhead) continue;
    overhead.push_back(
        {&activity, {kOverheadProcess, 0}, events.span(activity.start_s, activity.end_s)});
  }
  if (overhead.empty()) return;
  events.name_process(kOverheadProcess, program, "profiler's overhead", 6'000'000);
  events.name_thread({kOverheadProcess, 0}, "CUPTI", 0);
  cut_overlaps(overhead);
  for (const PlacedActivity& placed : overhead) {
    events.slice("overhead", placed.activity->name, placed.row, placed.span, {});
  }
}

// Events.

/// With `indent` 0, each member is on its own line: HolisticTraceAnalysis searches for a line with
/// the rank, with a blank after the colon. Invalid UTF-8 is replaced.
std::string text_of(const TraceJson& json, int indent = -1) {
  return json.dump(indent, ' ', false, TraceJson::error_handler_t::replace);
}

/// With these members after those common to all events.
TraceJson event_of(std::string_view phase, std::string_view category, std::string_view name,
                   TraceRow row, std::int64_t at_ns, const TraceJson& members) {
  TraceJson event = {{"ph", phase}};
  if (!category.empty()) event["cat"] = category;
  event["name"] = name;
  event["pid"] = row.pid;
  event["tid"] = row.tid;
  event["ts"] = us(at_ns);
  event.update(members);
  return event;
}

/// Identifies the host's call that a piece of work belongs to.
using WorkId = std::pair<std::int64_t, NodeId>;  // step, node

struct Queued {
  std::int64_t correlation = 0;
  TraceSpan span;
};

/// HolisticTraceAnalysis stores event numbers in an integer type that holds these.
constexpr std::int64_t kFirstId = 100'000;
/// Above the lanes' streams.
constexpr std::int64_t kOtherStreams = 100;

/// Writes the events of one device.
class Writer {
 public:
  Writer(TraceEvents& events, const Profile& profile, const TraceContext& context)
      : events_(events), profile_(profile), context_(context) {
    for (const TimedOp& op : profile.ops) {
      if (op.device == context.device) ops_[{op.tag.step, op.tag.node}] = &op;
    }
    for (const GpuActivity& activity : profile.activities) {
      if (activity.kind != GpuActivity::Kind::kCall || activity.correlation == 0) continue;
      // The first call is the outermost: the runtime may call the driver.
      calls_.try_emplace(activity.correlation, &activity);
      max_correlation_ = std::max(max_correlation_, activity.correlation);
    }
    if (!calls_.empty()) next_id_ += max_correlation_ + 1;
  }

  void write() {
    name_rows();
    for (const ProfiledStep& step : profile_.steps) write_step(step);
    for (const Record& record : profile_.queued) {
      if (record.device == context_.device) write_queued(record);
    }
    if (profile_.activities.empty()) {
      for (const TimedOp& op : profile_.ops) {
        if (op.device == context_.device) write_work(op);
      }
    } else {
      write_activities();
    }
    write_phases();
    write_forward_to_backward();
  }

 private:
  void name_rows() {
    events_.name_process(context_.pid, context_.program, "CPU", context_.pid);
    events_.name_thread(host_row(context_),
                        fmt::format("thread {} ({})", context_.thread, context_.program),
                        context_.thread);
    const bool on_cpu = context_.kind == DeviceKind::kCpu;
    events_.name_process(context_.device, context_.program,
                         fmt::format("{} {}", on_cpu ? "CPU device" : "GPU", context_.device),
                         context_.device + 5'000'000);
    for (const Lane lane : kValuesOf<Lane>) {
      const TraceRow row = lane_row(context_, lane);
      events_.name_thread(row, fmt::format("stream {} ({})", row.tid, name_of(lane)), row.tid);
    }
  }

  /// With the host's times, which mlp_lab explain reads.
  void write_step(const ProfiledStep& step) {
    const HostTimes& host = step.host();
    timelines_[step.timeline.step] = &step.timeline;
    events_.slice("user_annotation", fmt::format("ProfilerStep#{}", step.number),
                  host_row(context_), events_.span(host.begin_s, host.end_s),
                  {{"External id", next_id_++},
                   {"step", step.timeline.step},
                   {"clock start", us(events_.ns(host.start_s))},
                   {"fetch begin", us(events_.ns(host.fetch_begin_s))},
                   {"fetch end", us(events_.ns(host.fetched_s))},
                   {"overlaps previous", host.overlaps_previous},
                   {"overlaps next", host.overlaps_next},
                   {"joins lanes", host.joins_lanes}});
  }

  /// Which node of the program it was, and the nodes that it waited for on other lanes: node,
  /// device, steps before.
  void add_node(TraceJson& args, const TimedOp& op) const {
    args["phase"] = name_of(op.node->phase);
    args["block"] = op.node->block;
    args["step"] = op.tag.step;
    args["node"] = op.tag.node;
    const auto timeline = timelines_.find(op.tag.step);
    if (timeline == timelines_.end()) return;
    const RunPlan& plan = *timeline->second->plan;
    TraceJson waits = TraceJson::array();
    for (const std::size_t i : plan.runs_of(op.tag.node)) {
      const NodeRun& run = plan.runs()[i];
      if (run.lane.device != op.device) continue;
      for (const NodeRun::AwaitedPart& part : run.awaited) {
        const NodeRun& awaited = plan.runs()[plan.runs_of(part.node)[part.part]];
        waits.push_back({part.node, awaited.lane.device, part.steps_back});
      }
    }
    if (!waits.empty()) args["waits"] = std::move(waits);
  }

  void write_queued(const Record& record) {
    const TraceSpan span = events_.span(record.start_s, record.end_s);
    const std::int64_t id = next_id_++;
    queued_[{record.tag.step, record.tag.node}] = {id, span};
    const TraceRow row = host_row(context_);
    const TraceJson args = {{"External id", id}, {"cbid", 0}, {"correlation", id}};
    if (is_launch(record.tag.node)) {
      if (calls_.empty()) events_.slice("cuda_runtime", "cudaGraphLaunch", row, span, args);
      return;
    }
    const auto at = ops_.find({record.tag.step, record.tag.node});
    if (at == ops_.end()) return;
    const TimedOp& op = *at->second;
    // The call must be inside the op that makes it.
    const bool has_room = span.end_ns - span.begin_ns > 2;
    const TraceSpan call{span.begin_ns + (has_room ? 1 : 0), span.end_ns - (has_room ? 1 : 0)};
    if (const auto* collective = std::get_if<Collective>(&op.node->op)) {
      TraceJson of_collective = {{"External id", id}, {"Record function id", 0}};
      add_collective_args(of_collective, op, *collective, context_);
      events_.slice("cpu_op", "record_param_comms", row, span, of_collective);
      events_.slice("user_annotation", names_of(*collective).annotation, row, call,
                    {{"External id", id}});
    } else {
      events_.slice("cpu_op", record.label, row, span,
                    {{"External id", id},
                     {"Record function id", 0},
                     {"Ev Idx", id},
                     {"Input Dims", dims_of(*op.node)},
                     {"Input type", types_of(*op.node)}});
    }
    // If CUPTI reports the calls, they are written together with the work that they queued.
    if (calls_.empty()) events_.slice("cuda_runtime", named(op).call, row, call, args);
  }

  /// CUPTI's records: kernels by their own names, and the calls that queued them.
  void write_activities() {
    std::vector<PlacedActivity> work;
    for (const GpuActivity& activity : profile_.activities) {
      if (!activity.is_work() || activity.device != context_.device) continue;
      const auto op = ops_.find({activity.tag.step, activity.tag.node});
      // Readers cannot place work without a known call or node.
      if (op == ops_.end() && !calls_.contains(activity.correlation)) continue;
      // Work that belongs to no node has its own rows, one per CUDA stream.
      const TraceRow row = op != ops_.end()
                               ? lane_row(context_, op->second->node->lane)
                               : TraceRow{context_.device, kOtherStreams + activity.stream};
      work.push_back({&activity, row, events_.span(activity.start_s, activity.end_s)});
    }
    cut_overlaps(work);
    std::set<std::int64_t> written, named_rows;
    for (const PlacedActivity& placed : work) {
      if (placed.row.tid >= kOtherStreams && named_rows.insert(placed.row.tid).second) {
        events_.name_thread(placed.row, fmt::format("stream {} (other)", placed.activity->stream),
                            placed.row.tid);
      }
      write_activity(placed, written);
    }
    add_overhead(events_, profile_.activities, context_.program);
  }

  void write_activity(const PlacedActivity& placed, std::set<std::int64_t>& written) {
    const GpuActivity& activity = *placed.activity;
    const auto op = ops_.find({activity.tag.step, activity.tag.node});
    Queued queued = op == ops_.end() ? Queued{} : queued_of(*op->second);
    const std::int64_t external_id = queued.correlation;
    const auto call = calls_.find(activity.correlation);
    if (call != calls_.end()) {
      const GpuActivity& made = *call->second;
      queued = {kFirstId + made.correlation, events_.span(made.start_s, made.end_s)};
      if (written.insert(made.correlation).second) {
        // The two categories in Kineto.
        const char* const category = made.name.starts_with("cuda") ? "cuda_runtime" : "cuda_driver";
        events_.slice(category, made.name, host_row(context_), queued.span,
                      {{"External id", external_id},
                       {"cbid", made.call_id},
                       {"correlation", queued.correlation}});
      }
    } else if (op != ops_.end() && written.insert(-external_id).second) {
      // CUPTI lost the call; the time in which the host queued the node replaces it.
      events_.slice(
          "cuda_runtime", named(*op->second).call, host_row(context_), queued.span,
          {{"External id", external_id}, {"cbid", 0}, {"correlation", queued.correlation}});
    }
    TraceJson args = work_args(external_id, placed.row, queued.correlation);
    add_activity_args(args, activity, placed.span, context_.multiprocessors);
    if (op != ops_.end()) {
      const Node& node = *op->second->node;
      if (const auto* collective = std::get_if<Collective>(&node.op)) {
        add_collective_args(args, *op->second, *collective, context_);
      }
      args["op"] = label_of(node.op);
      add_node(args, *op->second);
    }
    const char* const category = activity.kind == GpuActivity::Kind::kKernel ? "kernel"
                                 : activity.kind == GpuActivity::Kind::kCopy ? "gpu_memcpy"
                                                                             : "gpu_memset";
    events_.slice(category, activity.name, placed.row, placed.span, args);
    if (queued.correlation > 0) {
      events_.arrow("ac2g", queued.correlation, host_row(context_), queued.span.begin_ns,
                    placed.row, placed.span.begin_ns);
    }
  }

  void write_work(const TimedOp& op) {
    const Queued queued = queued_of(op);
    const Named name = named(op);
    const TraceRow row = lane_row(context_, op.node->lane);
    const TraceSpan span = events_.span(op.start_s, op.end_s);
    TraceJson args = work_args(queued.correlation, row, queued.correlation);
    if (const auto* collective = std::get_if<Collective>(&op.node->op)) {
      add_collective_args(args, op, *collective, context_);
    } else if (name.category == std::string_view("gpu_memcpy")) {
      add_copy_args(args, op.cost.bytes / 2, span);  // each byte is read and written
    }
    add_node(args, op);
    args["flops"] = op.cost.flops;
    args["bytes moved"] = op.cost.bytes;
    events_.slice(name.category, name.name, row, span, args);
    if (queued.correlation > 0) {
      events_.arrow("ac2g", queued.correlation, host_row(context_), queued.span.begin_ns, row,
                    span.begin_ns);
    }
  }

  /// The arguments that Kineto writes for all work.
  [[nodiscard]] TraceJson work_args(std::int64_t external_id, TraceRow row,
                                    std::int64_t correlation) const {
    return {{"External id", external_id}, {"queued", 0},
            {"device", context_.device},  {"context", 1},
            {"stream", row.tid},          {"correlation", correlation}};
  }

  /// The call that queued the work: its own, or its step's graph launch.
  [[nodiscard]] Queued queued_of(const TimedOp& op) const {
    for (const NodeId node : {op.tag.node, launch_of(op.node->phase)}) {
      const auto at = queued_.find({op.tag.step, node});
      if (at != queued_.end()) return at->second;
    }
    return {};
  }

  /// The phases of the compute lane: a slice around the work of each phase, one nanosecond longer
  /// at both ends if there is room. In a pipeline each pass has its own, named "forward 2" for the
  /// third micro-batch, or "backward 2, weights", so that the stages' rows are the diagram of the
  /// schedule.
  void write_phases() {
    std::vector<const TimedOp*> lane;
    for (const TimedOp& op : profile_.ops) {
      if (op.device == context_.device && op.node->lane == Lane::kCompute) lane.push_back(&op);
    }
    std::int64_t free_ns = lane.empty() ? 0 : events_.ns(lane.front()->start_s) - 1;
    for (std::size_t first = 0, next = 0; first < lane.size(); first = next) {
      const auto same = [&](const TimedOp& op) {
        return op.node->phase == lane[first]->node->phase &&
               op.node->micro_batch == lane[first]->node->micro_batch &&
               op.node->is_for_weights == lane[first]->node->is_for_weights &&
               op.tag.step == lane[first]->tag.step;
      };
      while (next < lane.size() && same(*lane[next])) ++next;
      TraceSpan span = events_.span(lane[first]->start_s, lane[next - 1]->end_s);
      const bool has_room =
          next == lane.size() || events_.ns(lane[next]->start_s) - span.end_ns >= 2;
      span = {std::max(free_ns, span.begin_ns - 1), span.end_ns + (has_room ? 1 : 0)};
      free_ns = span.end_ns;
      const Node& node = *lane[first]->node;
      std::string name(name_of(node.phase));
      if (node.micro_batch) name += fmt::format(" {}", *node.micro_batch);
      if (node.is_for_weights) name += ", weights";
      events_.slice("gpu_user_annotation", name, lane_row(context_, Lane::kCompute), span,
                    {{"External id", next_id_++}});
    }
  }

  /// Arrows from each block's forward pass to its backward pass, in the host's row.
  void write_forward_to_backward() {
    std::map<std::pair<std::int64_t, std::string>, std::array<const Queued*, 2>> blocks;
    for (const TimedOp& op : profile_.ops) {
      const bool backward = op.node->phase == Phase::kBackward;
      if (op.node->block.empty() || (!backward && op.node->phase != Phase::kForward)) continue;
      const auto queued = queued_.find({op.tag.step, op.tag.node});
      if (queued == queued_.end() || op.device != context_.device) continue;
      const Queued*& first = blocks[{op.tag.step, op.node->block}][backward ? 1 : 0];
      if (first == nullptr) first = &queued->second;
    }
    for (const auto& [block, ends] : blocks) {
      if (ends[0] == nullptr || ends[1] == nullptr) continue;
      const TraceRow row = host_row(context_);
      events_.arrow("fwdbwd", next_id_++, row, ends[0]->span.begin_ns, row, ends[1]->span.begin_ns);
    }
  }

  TraceEvents& events_;
  const Profile& profile_;
  const TraceContext& context_;
  std::map<WorkId, const TimedOp*> ops_;
  std::map<WorkId, Queued> queued_;
  std::map<std::int64_t, const StepTimeline*> timelines_;  // by step
  std::map<std::int64_t, const GpuActivity*> calls_;       // by correlation
  std::int64_t max_correlation_ = 0;
  std::int64_t next_id_ = kFirstId;
};

}  // namespace

CollectiveNames names_of(const Collective& collective) {
  // In the order of the variant.
  static const std::array<CollectiveNames, std::variant_size_v<Collective>> all = {
      {{"ncclDevKernel_AllReduce_Sum_", "nccl:all_reduce", "allreduce"},
       {"ncclDevKernel_Broadcast_f32", "nccl:broadcast", "broadcast"},
       {"ncclDevKernel_Reduce_Sum_f32", "nccl:reduce", "reduce"},
       {"ncclDevKernel_ReduceScatter_Sum_f32", "nccl:reduce_scatter", "reduce_scatter"},
       {"ncclDevKernel_AllGather", "nccl:all_gather", "allgather"},
       {"ncclDevKernel_SendRecv", "nccl:send_recv", "sendrecv"}}};
  CollectiveNames names = all[collective.index()];
  if (const auto* const sum = std::get_if<AllReduce>(&collective)) {
    names.kernel += kTypeNames[sum->tensors.front().dtype].of_kernel;
  }
  return names;
}

ClockOrigin clock_origin() {
  const double host_s = now_s();
  const auto unix_time = std::chrono::system_clock::now().time_since_epoch();
  return {host_s, std::chrono::duration_cast<std::chrono::nanoseconds>(unix_time).count()};
}

std::int64_t TraceEvents::ns(double host_s) const {
  return std::llround((host_s - origin_.host_s) * 1e9);
}

void TraceEvents::line(const TraceJson& event) {
  if (!lines_.empty()) lines_ += ",\n";
  lines_ += text_of(event);
}

void TraceEvents::slice(std::string_view category, std::string_view name, TraceRow row,
                        TraceSpan span, const TraceJson& args) {
  first_ns_ = has_slices_ ? std::min(first_ns_, span.begin_ns) : span.begin_ns;
  last_ns_ = has_slices_ ? std::max(last_ns_, span.end_ns) : span.end_ns;
  has_slices_ = true;
  const std::int64_t ns = std::max<std::int64_t>(0, span.end_ns - span.begin_ns);
  line(event_of("X", category, name, row, span.begin_ns,
                {{"dur", us(ns)}, {"args", args.is_null() ? TraceJson::object() : args}}));
}

void TraceEvents::arrow(std::string_view category, std::int64_t id, TraceRow from,
                        std::int64_t from_ns, TraceRow to, std::int64_t to_ns) {
  line(event_of("s", category, category, from, from_ns, {{"id", id}}));
  line(event_of("f", category, category, to, to_ns, {{"id", id}, {"bp", "e"}}));
}

void TraceEvents::counter(std::string_view name, TraceRow row, std::int64_t at_ns,
                          const TraceJson& args) {
  line(event_of("C", "", name, row, at_ns, {{"args", args}}));
}

void TraceEvents::instant(std::string_view category, std::string_view name, TraceRow row,
                          std::int64_t at_ns, const TraceJson& args) {
  line(event_of("i", category, name, row, at_ns, {{"s", "t"}, {"args", args}}));
}

void TraceEvents::meta(std::string_view name, TraceRow row, const TraceJson& args) {
  line(event_of("M", "", name, row, 0, {{"args", args}}));
}

void TraceEvents::name_process(std::int64_t pid, std::string_view name, std::string_view label,
                               std::int64_t sort_index) {
  const TraceRow row{pid, 0};
  meta("process_name", row, {{"name", name}});
  meta("process_labels", row, {{"labels", label}});
  meta("process_sort_index", row, {{"sort_index", sort_index}});
}

void TraceEvents::name_thread(TraceRow row, std::string_view name, std::int64_t sort_index) {
  meta("thread_name", row, {{"name", name}});
  meta("thread_sort_index", row, {{"sort_index", sort_index}});
}

void TraceEvents::close() {
  line({{"ph", "X"},
        {"cat", "Trace"},
        {"ts", us(first_ns_)},
        {"dur", us(last_ns_ - first_ns_)},
        {"pid", "Spans"},
        {"tid", "PyTorch Profiler"},
        {"name", "PyTorch Profiler (0)"},
        {"args", {{"Op count", 0}}}});
  line({{"name", "Iteration Start: PyTorch Profiler"},
        {"ph", "i"},
        {"s", "g"},
        {"pid", "Traces"},
        {"tid", "Trace PyTorch Profiler"},
        {"ts", us(first_ns_)}});
  line({{"name", "Record Window End"},
        {"ph", "i"},
        {"s", "g"},
        {"pid", ""},
        {"tid", ""},
        {"ts", us(last_ns_)}});
}

std::string TraceEvents::file(const TraceJson& head, std::string_view name) const {
  std::string text = "{\n";
  const auto add = [&](std::string_view key, const std::string& value) {
    text += fmt::format("\"{}\": {},\n", key, value);
  };
  add("schemaVersion", "1");
  for (const auto& [key, value] : head.items()) add(key, text_of(value, 0));
  add("displayTimeUnit", "\"ms\"");
  add("baseTimeNanoseconds", fmt::format("{}", origin_.unix_ns));
  add("traceEvents", fmt::format("[\n{}\n]", lines_));
  return text + fmt::format("\"traceName\": {}\n}}\n", text_of(name));
}

void write_trace(const std::filesystem::path& path, const FileWriter& write) {
  if (path.extension() != ".gz") return replace_file_by(path, write);
  replace_file_by(path, [&](const ByteSink& sink) { gzip(write, sink); });
}

void write_trace(const std::filesystem::path& path, std::string_view text) {
  write_trace(path, [&](const ByteSink& sink) { sink(text); });
}

TraceRow host_row(const TraceContext& context) {
  return {context.pid, context.thread};
}

TraceRow lane_row(const TraceContext& context, Lane lane) {
  // With stream 0, a reader would lose its assignment to a step.
  return {context.device, static_cast<std::int64_t>(lane) + 1};
}

void add_profile(TraceEvents& events, const Profile& profile, const TraceContext& context) {
  Writer(events, profile, context).write();
}

TraceJson trace_head(const TraceContext& context) {
  const Multiprocessors& of = context.multiprocessors;
  const Mesh& mesh = context.mesh;
  TraceJson head;
  head["deviceProperties"] = {{{"id", context.device},
                               {"name", context.device_name},
                               {"totalGlobalMem", context.device_bytes},
                               {"computeMajor", 0},
                               {"computeMinor", 0},
                               {"maxThreadsPerBlock", 0},
                               {"maxThreadsPerMultiprocessor", of.threads},
                               {"regsPerBlock", 0},
                               {"warpSize", of.count > 0 ? 32 : 0},
                               {"sharedMemPerBlock", 0},
                               {"numSms", of.count},
                               {"regsPerMultiprocessor", of.registers},
                               {"sharedMemPerMultiprocessor", of.shared_bytes}}};
  head["record_shapes"] = 1;
  head["profile_memory"] = 1;
  head["with_stack"] = 0;
  head["with_flops"] = 1;
  head["with_modules"] = 0;
  head["distributedInfo"] = {
      {"backend", context.backend}, {"rank", mesh.rank}, {"world_size", mesh.ranks()}};
  if (mesh.ranks() > 1) head["clock_error_us"] = 1e6 * context.clock_error_s;
  head["barestep_version"] = context.version;
  return head;
}

std::string trace_text(const TraceEvents& events, const TraceContext& context) {
  return events.file(trace_head(context), context.trace_name);
}

}  // namespace barestep
