#include "profiler/trace.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <set>
#include <utility>

#include "profiler/trace_activity.h"
#include "profiler/trace_names.h"

namespace barestep {
namespace {

/// Which call of the host a piece of work belongs to.
using WorkId = std::pair<std::int64_t, NodeId>;  // step, node

struct Queued {
  std::int64_t correlation = 0;
  TraceSpan span;
};

/// HolisticTraceAnalysis keeps the numbers of events in the type that holds these.
constexpr std::int64_t kFirstId = 100'000;
/// Above those of the lanes.
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
      // The first is the outermost: the runtime may do its work by a call of the driver.
      calls_.try_emplace(activity.correlation, &activity);
      most_correlation_ = std::max(most_correlation_, activity.correlation);
    }
    if (!calls_.empty()) next_id_ += most_correlation_ + 1;
  }

  void write() {
    name_rows();
    for (const ProfiledStep& step : profile_.steps) {
      events_.slice("user_annotation", fmt::format("ProfilerStep#{}", step.number),
                    host_row(context_), events_.span(step.host().begin_s, step.host().end_s),
                    fmt::format(R"("External id": {})", next_id_++));
    }
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
      if (calls_.empty()) events_.slice("cuda_runtime", "cudaGraphLaunch", row, span, args);
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
    // Where CUPTI tells of the calls, they are written with the work that they queued.
    if (calls_.empty()) events_.slice("cuda_runtime", named(op).call, row, call, args);
  }

  /// What CUPTI saw: kernels by their own names, and the calls that queued them.
  void write_activities() {
    std::vector<PlacedActivity> work;
    for (const GpuActivity& activity : profile_.activities) {
      if (!activity.is_work() || activity.device != context_.device) continue;
      const auto op = ops_.find({activity.tag.step, activity.tag.node});
      // Readers cannot place what was queued by nothing that is known.
      if (op == ops_.end() && !calls_.contains(activity.correlation)) continue;
      // What belongs to no node has rows of its own, by CUDA's streams.
      const TraceRow row = op != ops_.end()
                               ? lane_row(context_, op->second->node->lane)
                               : TraceRow{context_.device, kOtherStreams + activity.stream};
      work.push_back({&activity, row, events_.span(activity.start_s, activity.end_s)});
    }
    cut_overlaps(work);
    std::set<std::int64_t> written, named_rows;
    for (const PlacedActivity& each : work) {
      if (each.row.tid >= kOtherStreams && named_rows.insert(each.row.tid).second) {
        events_.name_thread(each.row, fmt::format("stream {} (other)", each.activity->stream),
                            each.row.tid);
      }
      write_activity(each, written);
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
        // Kineto's two categories.
        const char* const category = made.name.starts_with("cuda") ? "cuda_runtime" : "cuda_driver";
        events_.slice(category, made.name, host_row(context_), queued.span,
                      fmt::format(R"("External id": {}, "cbid": {}, "correlation": {})",
                                  external_id, made.call_id, queued.correlation));
      }
    } else if (op != ops_.end() && written.insert(-external_id).second) {
      // CUPTI lost the call: the stretch in which the host queued the node stands for it.
      events_.slice("cuda_runtime", named(*op->second).call, host_row(context_), queued.span,
                    fmt::format(R"("External id": {}, "cbid": 0, "correlation": {})", external_id,
                                queued.correlation));
    }
    std::string args =
        fmt::format(R"("External id": {}, "queued": 0, "device": {}, "context": 1, "stream": {}, )"
                    R"("correlation": {})",
                    external_id, context_.device, placed.row.tid, queued.correlation);
    args += activity_args(activity, placed.span, context_.multiprocessors);
    if (op != ops_.end()) {
      const Node& node = *op->second->node;
      if (const auto* collective = std::get_if<Collective>(&node.op)) {
        args += ", " + collective_args(*op->second, *collective, context_);
      }
      args += fmt::format(R"(, "op": "{}", "phase": "{}", "layer": {})", label_of(node.op),
                          name_of(node.phase), node.layer);
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
  std::map<std::int64_t, const GpuActivity*> calls_;  // by correlation
  std::int64_t most_correlation_ = 0;
  std::int64_t next_id_ = kFirstId;
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
  const Multiprocessors& of = context.multiprocessors;
  std::string text = fmt::format(
      R"("deviceProperties": [{{"id": {}, "name": {}, "totalGlobalMem": {}, "computeMajor": 0, )"
      R"("computeMinor": 0, "maxThreadsPerBlock": 0, "maxThreadsPerMultiprocessor": {}, )"
      R"("regsPerBlock": 0, "warpSize": {}, "sharedMemPerBlock": 0, "numSms": {}, )"
      R"("regsPerMultiprocessor": {}, "sharedMemPerMultiprocessor": {}}}],)",
      context.device, json_string(context.device_name), context.device_bytes, of.threads,
      of.count > 0 ? 32 : 0, of.count, of.registers, of.shared_bytes);
  text += "\n\"record_shapes\": 1,\n\"profile_memory\": 1,\n\"with_stack\": 0,\n";
  text += "\"with_flops\": 1,\n\"with_modules\": 0,\n";
  // A blank behind the colon, on a line of its own: HolisticTraceAnalysis looks for that.
  text += fmt::format(
      "\"distributedInfo\": {{\n\"backend\": {},\n\"rank\": {},\n\"world_size\": {}\n}},\n",
      json_string(context.backend), context.rank, context.world);
  if (context.world > 1) {
    text += fmt::format("\"clock_error_us\": {:.3f},\n", 1e6 * context.clock_error_s);
  }
  return text + fmt::format("\"barestep_version\": {},\n", json_string(context.version));
}

}  // namespace barestep
