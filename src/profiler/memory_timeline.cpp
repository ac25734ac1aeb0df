#include "profiler/memory_timeline.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "core/index.h"
#include "core/text_table.h"
#include "core/units.h"

namespace barestep {
namespace {

/// Indices among the device's points.
struct Lifetime {
  std::optional<std::size_t> first, last;
  bool always = false;
};

std::vector<Lifetime> lifetimes_of(const Program& program, int device,
                                   const std::vector<MemoryPoint>& points) {
  std::vector<Lifetime> lifetimes(static_cast<std::size_t>(program.buffers().size()));
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Node& node = program.node(points[i].node);
    for (const Access& access : accesses_of(node.op)) {
      Lifetime& life = at(lifetimes, access.tensor.buffer);
      if (!life.first) life.first = i;
      life.last = i;
      if (life.first == i && !access.writes) life.always = true;
    }
  }
  for (BufferId id = 0; id < program.buffers().size(); ++id) {
    Lifetime& life = at(lifetimes, id);
    const Buffer& buffer = program.buffers()[id];
    if (buffer.slots > 1 || !life.first) life.always = true;
    if (buffer.device != device || buffer.pinned) life = {};
  }
  return lifetimes;
}

bool runs_on(const Program& program, const Node& node, int device) {
  const auto lanes = lanes_of(program, node);
  return std::any_of(lanes.begin(), lanes.end(),
                     [&](const LaneId& lane) { return lane.device == device; });
}

std::int64_t bytes_of_all(const std::vector<BufferId>& buffers, const MemoryPlan& plan) {
  return std::accumulate(
      buffers.begin(), buffers.end(), std::int64_t{0},
      [&](std::int64_t sum, BufferId buffer) { return sum + plan.buffer_bytes(buffer); });
}

std::string signed_bytes(std::int64_t bytes) {
  if (bytes == 0) return "";
  return fmt::format("{}{}", bytes > 0 ? "+" : "", grouped(bytes));
}

std::string node_text(const Program& program, NodeId id) {
  const Node& node = program.node(id);
  return fmt::format("#{} {} {}{}", id, name_of(node.phase), label_of(node.op), node.of_block());
}

}  // namespace

std::string high_water_text(const Program& program, const MemoryTimeline& timeline) {
  const MemoryPoint& highest = timeline.points[timeline.highest];
  std::string parts;
  for (const Category category : kValuesOf<Category>) {
    const std::int64_t bytes = highest.in_use_bytes[category];
    if (bytes == 0) continue;
    parts +=
        fmt::format("{}{} {}", parts.empty() ? "" : ", ", name_of(category), human_bytes(bytes));
  }
  const std::int64_t max = highest.total_bytes();
  return fmt::format("At most {} of the {} are in use, at {}: {}.", human_bytes(max),
                     human_bytes(timeline.reserved_bytes), node_text(program, highest.node), parts);
}

std::int64_t MemoryPoint::total_bytes() const {
  return std::accumulate(in_use_bytes.begin(), in_use_bytes.end(), std::int64_t{0});
}

MemoryTimeline memory_timeline(const Program& program, const MemoryPlan& plan, int device) {
  MemoryTimeline timeline{.points = {}, .reserved_bytes = plan.device_bytes(device)};
  for (NodeId id = 0; id < program.size(); ++id) {
    if (runs_on(program, program.node(id), device)) {
      timeline.points.push_back({.node = id, .begins = {}, .ends = {}});
    }
  }
  std::vector<MemoryPoint>& points = timeline.points;
  const std::vector<Lifetime> lifetimes = lifetimes_of(program, device, points);
  // First the changes from one point to the next, then their sums.
  for (BufferId id = 0; id < program.buffers().size(); ++id) {
    const Lifetime& life = at(lifetimes, id);
    if (points.empty() || (!life.always && !life.first)) continue;
    const std::size_t first = life.always ? 0 : *life.first;
    const std::size_t after = life.always ? points.size() : *life.last + 1;
    const Category category = program.buffers()[id].category;
    const std::int64_t bytes = plan.buffer_bytes(id);
    points[first].in_use_bytes[category] += bytes;
    if (after < points.size()) points[after].in_use_bytes[category] -= bytes;
    if (life.always) continue;
    points[first].begins.push_back(id);
    points[after - 1].ends.push_back(id);
  }
  for (std::size_t i = 1; i < points.size(); ++i) {
    for (const Category category : kValuesOf<Category>) {
      points[i].in_use_bytes[category] += points[i - 1].in_use_bytes[category];
    }
    if (points[i].total_bytes() > points[timeline.highest].total_bytes()) timeline.highest = i;
  }
  return timeline;
}

std::string memory_table(const Program& program, const MemoryPlan& plan, int device,
                         std::int64_t row_limit) {
  const MemoryTimeline timeline = memory_timeline(program, plan, device);
  if (timeline.points.empty()) return "";
  TextTable table({"op", ">before it (B)", ">in use (B)", ">after it (B)"});
  std::int64_t rows = 0;
  for (const MemoryPoint& point : timeline.points) {
    if (point.begins.empty() && point.ends.empty()) continue;
    if (rows++ >= row_limit) continue;
    table.add_row({node_text(program, point.node), signed_bytes(bytes_of_all(point.begins, plan)),
                   grouped(point.total_bytes()), signed_bytes(-bytes_of_all(point.ends, plan))});
  }
  if (rows > row_limit) table.add_line(fmt::format("... and {} more", rows - row_limit));
  return table.text() + high_water_text(program, timeline) + "\n";
}

void add_memory(TraceEvents& events, const Profile& profile, const MemoryPlan& plan,
                const TraceContext& context) {
  std::map<const Program*, MemoryTimeline> timelines;
  std::int64_t index = 0;
  for (const TimedOp& op : profile.ops) {
    if (op.device != context.device) continue;
    const auto [at, is_new] = timelines.try_emplace(op.program);
    if (is_new) at->second = memory_timeline(*op.program, plan, context.device);
    const MemoryTimeline& timeline = at->second;
    const auto point =
        std::lower_bound(timeline.points.begin(), timeline.points.end(), op.tag.node,
                         [](const MemoryPoint& p, NodeId node) { return p.node < node; });
    if (point->begins.empty() && point->ends.empty()) continue;
    TraceJson counts;
    for (const Category category : kValuesOf<Category>) {
      if (is_optional(category)) continue;  // no op uses it
      counts[std::string(name_of(category))] = point->in_use_bytes[category];
    }
    const TraceRow row = host_row(context);
    events.counter("memory in use", row, events.ns(op.start_s), counts);
    std::int64_t in_use = point->total_bytes() - bytes_of_all(point->begins, plan);
    const auto change = [&](BufferId buffer, std::int64_t sign, double at_s) {
      in_use += sign * plan.buffer_bytes(buffer);
      events.instant("cpu_instant_event", "[memory]", row, events.ns(at_s),
                     {{"Total Reserved", timeline.reserved_bytes},
                      {"Total Allocated", in_use},
                      {"Bytes", sign * plan.buffer_bytes(buffer)},
                      {"Addr", plan.offset_bytes(buffer, 0)},
                      {"Device Id", context.device},
                      {"Device Type", context.kind == DeviceKind::kCuda ? 1 : 0},
                      {"Ev Idx", index++}});
    };
    for (const BufferId buffer : point->begins) change(buffer, 1, op.start_s);
    for (const BufferId buffer : point->ends) change(buffer, -1, op.end_s);
  }
}

}  // namespace barestep
