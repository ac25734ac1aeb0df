#include "profiler/trace.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <utility>

#include "core/overloaded.h"

namespace barestep {
namespace {

/// Which call of the host a piece of work belongs to.
using WorkId = std::pair<std::int64_t, NodeId>;  // step, node

struct Queued {
  std::int64_t correlation = 0;
  TraceSpan span;
};

/// What readers tell kinds of work apart by.
struct Named {
  const char* category;
  std::string name;
  const char* call;  // of the CUDA runtime, that would have queued it
};

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

/// Readers know communication by NCCL's names, whoever carries it out.
struct CollectiveNames {
  const char* kernel;
  const char* annotation;
  const char* collective;
};

CollectiveNames names_of(const Collective& collective) {
  return std::visit(
      Overloaded{
          [](const AllReduce&) {
            return CollectiveNames{"ncclDevKernel_AllReduce_Sum_f32", "nccl:all_reduce",
                                   "allreduce"};
          },
          [](const Broadcast&) {
            return CollectiveNames{"ncclDevKernel_Broadcast_f32", "nccl:broadcast", "broadcast"};
          },
          [](const Reduce&) {
            return CollectiveNames{"ncclDevKernel_Reduce_Sum_f32", "nccl:reduce", "reduce"};
          },
          [](const ReduceScatter&) {
            return CollectiveNames{"ncclDevKernel_ReduceScatter_Sum_f32", "nccl:reduce_scatter",
                                   "reduce_scatter"};
          },
          [](const AllGather&) {
            return CollectiveNames{"ncclDevKernel_AllGather", "nccl:all_gather", "allgather"};
          }},
      collective);
}

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

std::string dims_of(const Node& node) {
  std::string dims;
  for (const Access& access : accesses_of(node.op)) {
    dims +=
        fmt::format("{}[{}, {}]", dims.empty() ? "" : ", ", access.tensor.rows, access.tensor.cols);
  }
  return dims;
}

std::string types_of(const Node& node) {
  std::string types;
  for (const Access& access : accesses_of(node.op)) {
    const char* const type = access.tensor.dtype == DType::kF32    ? "float"
                             : access.tensor.dtype == DType::kBF16 ? "c10::BFloat16"
                             : access.tensor.dtype == DType::kI32  ? "int"
                                                                   : "unsigned char";
    types += fmt::format("{}\"{}\"", types.empty() ? "" : ", ", type);
  }
  return types;
}

/// The args of a collective, in the order in which Kineto has them.
std::string collective_args(const TimedOp& op, const Collective& collective,
                            const TraceContext& context) {
  const DType dtype = parts_of(collective).front().front().tensor.dtype;
  const std::int64_t numbers = op.cost.message_bytes / bytes_of(dtype);
  std::string ranks;
  for (int rank = 0; rank < context.world; ++rank) {
    ranks += fmt::format("{}{}", rank == 0 ? "" : ", ", rank);
  }
  return fmt::format(
      R"("Collective name": "{}", "In msg nelems": {}, "Out msg nelems": {}, "Group size": {}, )"
      R"("dtype": "{}", "In split size": "[]", "Out split size": "[]", )"
      R"("Process Group Name": "0", "Process Group Description": "default_pg", )"
      R"("Process Group Ranks": "[{}]")",
      names_of(collective).collective, numbers, numbers, context.world,
      dtype == DType::kBF16 ? "BFloat16" : "Float", ranks);
}

/// Writes the events of one device.
class Writer {
 public:
  Writer(TraceEvents& events, const Profile& profile, const TraceContext& context)
      : events_(events), profile_(profile), context_(context) {
    for (const TimedOp& op : profile.ops) {
      if (op.device == context.device) ops_[{op.tag.step, op.tag.node}] = &op;
    }
  }

  void write() {
    name_rows();
    for (const HostStep& step : profile_.steps) {
      events_.slice("user_annotation", fmt::format("ProfilerStep#{}", step.number),
                    host_row(context_), events_.span(step.begin_s, step.end_s),
                    fmt::format(R"("External id": {})", next_id_++));
    }
    for (const Record& record : profile_.queued) {
      if (record.device == context_.device) write_queued(record);
    }
    for (const TimedOp& op : profile_.ops) {
      if (op.device == context_.device) write_work(op);
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
    for (int i = 0; i < kLanes; ++i) {
      const auto lane = static_cast<Lane>(i);
      const TraceRow row = lane_row(context_, lane);
      events_.name_thread(row, fmt::format("stream {} ({})", row.tid, name_of(lane)), row.tid);
    }
  }

  void write_queued(const Record& record) {
    const TraceSpan span = events_.span(record.start_s, record.end_s);
    const std::int64_t id = next_id_++;
    queued_[{record.tag.step, record.tag.node}] = {id, span};
    const TraceRow row = host_row(context_);
    const std::string args =
        fmt::format(R"("External id": {}, "cbid": 0, "correlation": {})", id, id);
    if (record.tag.node == kGraphLaunch) {
      events_.slice("cuda_runtime", "cudaGraphLaunch", row, span, args);
      return;
    }
    const auto at = ops_.find({record.tag.step, record.tag.node});
    if (at == ops_.end()) return;
    const TimedOp& op = *at->second;
    // The call lies inside the op that makes it.
    const bool has_room = span.end_ns - span.begin_ns > 2;
    const TraceSpan call{span.begin_ns + (has_room ? 1 : 0), span.end_ns - (has_room ? 1 : 0)};
    if (const auto* collective = std::get_if<Collective>(&op.node->op)) {
      const std::string of_collective = collective_args(op, *collective, context_);
      events_.slice(
          "cpu_op", "record_param_comms", row, span,
          fmt::format(R"("External id": {}, "Record function id": 0, {})", id, of_collective));
      events_.slice("user_annotation", names_of(*collective).annotation, row, call,
                    fmt::format(R"("External id": {})", id));
    } else {
      events_.slice("cpu_op", record.label, row, span,
                    fmt::format(R"("External id": {}, "Record function id": 0, "Ev Idx": {}, )"
                                R"("Input Dims": [{}], "Input type": [{}])",
                                id, id, dims_of(*op.node), types_of(*op.node)));
    }
    events_.slice("cuda_runtime", named(op).call, row, call, args);
  }

  void write_work(const TimedOp& op) {
    const Queued queued = queued_of(op);
    const Named name = named(op);
    const TraceRow row = lane_row(context_, op.node->lane);
    const TraceSpan span = events_.span(op.start_s, op.end_s);
    std::string args =
        fmt::format(R"("External id": {}, "queued": 0, "device": {}, "context": 1, "stream": {}, )"
                    R"("correlation": {})",
                    queued.correlation, context_.device, row.tid, queued.correlation);
    if (const auto* collective = std::get_if<Collective>(&op.node->op)) {
      args += ", " + collective_args(op, *collective, context_);
    } else if (name.category == std::string_view("gpu_memcpy")) {
      const std::int64_t bytes = op.cost.bytes / 2;  // each is read and written
      const auto ns = static_cast<double>(std::max<std::int64_t>(1, span.end_ns - span.begin_ns));
      args += fmt::format(R"_(, "bytes": {}, "memory bandwidth (GB/s)": {:.6f})_", bytes,
                          static_cast<double>(bytes) / ns);
    }
    args += fmt::format(R"(, "phase": "{}", "layer": {}, "flops": {}, "bytes moved": {})",
                        name_of(op.node->phase), op.node->layer, op.cost.flops, op.cost.bytes);
    events_.slice(name.category, name.name, row, span, args);
    if (queued.correlation > 0) {
      events_.arrow("ac2g", queued.correlation, host_row(context_), queued.span.begin_ns, row,
                    span.begin_ns);
    }
  }

  /// The call that queued the work: its own, or the launch of its step's graph.
  [[nodiscard]] Queued queued_of(const TimedOp& op) const {
    for (const NodeId node : {op.tag.node, kGraphLaunch}) {
      const auto at = queued_.find({op.tag.step, node});
      if (at != queued_.end()) return at->second;
    }
    return {};
  }

  /// What the compute lane is at: a stretch around the work of one phase, a nanosecond longer at
  /// either end where there is room.
  void write_phases() {
    std::vector<const TimedOp*> lane;
    for (const TimedOp& op : profile_.ops) {
      if (op.device == context_.device && op.node->lane == Lane::kCompute) lane.push_back(&op);
    }
    std::int64_t free_ns = lane.empty() ? 0 : events_.ns(lane.front()->start_s) - 1;
    for (std::size_t first = 0, next = 0; first < lane.size(); first = next) {
      const auto same = [&](const TimedOp& op) {
        return op.node->phase == lane[first]->node->phase && op.tag.step == lane[first]->tag.step;
      };
      while (next < lane.size() && same(*lane[next])) ++next;
      TraceSpan span = events_.span(lane[first]->start_s, lane[next - 1]->end_s);
      const bool has_room =
          next == lane.size() || events_.ns(lane[next]->start_s) - span.end_ns >= 2;
      span = {std::max(free_ns, span.begin_ns - 1), span.end_ns + (has_room ? 1 : 0)};
      free_ns = span.end_ns;
      events_.slice("gpu_user_annotation", name_of(lane[first]->node->phase),
                    lane_row(context_, Lane::kCompute), span,
                    fmt::format(R"("External id": {})", next_id_++));
    }
  }

  /// From each layer's forward pass to its backward pass, in the host's row.
  void write_forward_to_backward() {
    std::map<std::pair<std::int64_t, int>, std::array<const Queued*, 2>> layers;
    for (const TimedOp& op : profile_.ops) {
      const bool backward = op.node->phase == Phase::kBackward;
      if (op.node->layer < 0 || (!backward && op.node->phase != Phase::kForward)) continue;
      const auto queued = queued_.find({op.tag.step, op.tag.node});
      if (queued == queued_.end() || op.device != context_.device) continue;
      const Queued*& first = layers[{op.tag.step, op.node->layer}][backward ? 1 : 0];
      if (first == nullptr) first = &queued->second;
    }
    for (const auto& [layer, ends] : layers) {
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
  // HolisticTraceAnalysis keeps the numbers of events in the type that holds these.
  std::int64_t next_id_ = 100'000;
};

}  // namespace

TraceRow host_row(const TraceContext& context) {
  return {context.pid, context.thread};
}

TraceRow lane_row(const TraceContext& context, Lane lane) {
  // Stream 0 would lose its place in a step.
  return {context.device, static_cast<std::int64_t>(lane) + 1};
}

void add_profile(TraceEvents& events, const Profile& profile, const TraceContext& context) {
  Writer(events, profile, context).write();
}

std::string trace_head(const TraceContext& context) {
  std::string text = fmt::format(
      R"("deviceProperties": [{{"id": {}, "name": {}, "totalGlobalMem": {}, "computeMajor": 0, )"
      R"("computeMinor": 0, "maxThreadsPerBlock": 0, "maxThreadsPerMultiprocessor": 0, )"
      R"("regsPerBlock": 0, "warpSize": 0, "sharedMemPerBlock": 0, "numSms": 0}}],)",
      context.device, json_string(context.device_name), context.device_bytes);
  text += "\n\"record_shapes\": 1,\n\"profile_memory\": 1,\n\"with_stack\": 0,\n";
  text += "\"with_flops\": 1,\n\"with_modules\": 0,\n";
  // A blank behind the colon, on a line of its own: HolisticTraceAnalysis looks for that.
  text += fmt::format(
      "\"distributedInfo\": {{\n\"backend\": {},\n\"rank\": {},\n\"world_size\": {}\n}},\n",
      json_string(context.backend), context.rank, context.world);
  return text + fmt::format("\"barestep_version\": {},\n", json_string(context.version));
}

}  // namespace barestep
