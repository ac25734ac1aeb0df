#include "profiler/breakdown.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "profiler/operator_table.h"

namespace barestep {
namespace {

struct Interval {
  double begin_s = 0, end_s = 0;
};

enum class Kind { kCompute, kCopy, kCommunication };

Kind kind_of(const TimedOp& op) {
  const auto* device_op = std::get_if<DeviceOp>(&op.node->op);
  if (device_op == nullptr) return Kind::kCommunication;
  return std::holds_alternative<Copy>(*device_op) ? Kind::kCopy : Kind::kCompute;
}

/// Adds a interval that begins no earlier than those before it.
void unite(std::vector<Interval>& intervals, const Interval& interval) {
  if (intervals.empty() || interval.begin_s > intervals.back().end_s) {
    intervals.push_back(interval);
  } else {
    intervals.back().end_s = std::max(intervals.back().end_s, interval.end_s);
  }
}

double length(const std::vector<Interval>& intervals) {
  double length_s = 0;
  for (const Interval& interval : intervals) length_s += interval.end_s - interval.begin_s;
  return length_s;
}

double common_length(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  double common_s = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const double end_s = std::min(a[i].end_s, b[j].end_s);
    common_s += std::max(0.0, end_s - std::max(a[i].begin_s, b[j].begin_s));
    (a[i].end_s < b[j].end_s ? i : j) += 1;
  }
  return common_s;
}

/// When the host began to queue each piece of work.
class QueueTimes {
 public:
  explicit QueueTimes(const Profile& profile) {
    for (const Record& record : profile.queued) {
      times_[{record.tag.step, record.tag.node}] = record.start_s;
    }
  }
  [[nodiscard]] std::optional<double> of(const TimedOp& op) const {
    for (const NodeId node : {op.tag.node, kGraphLaunch}) {
      const auto at = times_.find({op.tag.step, node});
      if (at != times_.end()) return at->second;
    }
    return std::nullopt;
  }

 private:
  std::map<std::pair<std::int64_t, NodeId>, double> times_;
};

}  // namespace

Breakdown breakdown_of(const Profile& profile, int device) {
  std::vector<Interval> busy, compute, communication;
  std::map<int, StreamIdle> streams;
  std::map<int, double> ends;
  const QueueTimes queue_times(profile);
  for (const TimedOp& op : profile.ops) {
    if (op.device != device) continue;
    const Interval interval{op.start_s, op.end_s};
    unite(busy, interval);
    if (kind_of(op) == Kind::kCompute) unite(compute, interval);
    if (kind_of(op) == Kind::kCommunication) unite(communication, interval);

    const int stream = static_cast<int>(op.node->lane) + 1;
    StreamIdle& idle = streams[stream];
    idle.stream = stream;
    const auto [end, is_first] = ends.try_emplace(stream, op.end_s);
    if (is_first) continue;
    const double gap_s = op.start_s - end->second;
    const auto queued_s = queue_times.of(op);
    const bool host_was_late = queued_s && *queued_s > end->second;
    (host_was_late              ? idle.host_wait_s
     : gap_s < kShortGapSeconds ? idle.kernel_wait_s
                                : idle.other_s) += gap_s;
    end->second = op.end_s;
  }
  Breakdown breakdown{.streams = {}};
  if (busy.empty()) return breakdown;
  breakdown.span_s = busy.back().end_s - busy.front().begin_s;
  breakdown.compute_s = length(compute);
  breakdown.idle_s = breakdown.span_s - length(busy);
  breakdown.non_compute_s = length(busy) - breakdown.compute_s;
  if (!communication.empty()) {
    breakdown.overlap = common_length(communication, compute) / length(communication);
  }
  for (const auto& [stream, idle] : streams) breakdown.streams.push_back(idle);
  return breakdown;
}

std::string breakdown_text(const Breakdown& breakdown) {
  if (breakdown.span_s == 0) return "";
  const auto percent = [&](double seconds) { return 100 * seconds / breakdown.span_s; };
  const std::string overlap = breakdown.overlap
                                  ? fmt::format("; {:.1f} % of communication is beside computation",
                                                100 * *breakdown.overlap)
                                  : "";
  return fmt::format(
      "From first to last op the device computes {:.1f} % of {}, only copies or communicates "
      "{:.1f} %, and is idle {:.1f} %{}.\n",
      percent(breakdown.compute_s), table_time(breakdown.span_s), percent(breakdown.non_compute_s),
      percent(breakdown.idle_s), overlap);
}

}  // namespace barestep
