#include "profiler/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "core/statistics.h"
#include "core/units.h"

namespace barestep {

namespace {

const Node& node_of(const ProfiledStep& step, const NodeRun& run) {
  return step.timeline.plan->program().node(run.first);
}

/// Whether bytes go from one of a collective's parts to another, of this rank or of others.
bool moves_bytes(const Collective& collective, const Mesh& mesh) {
  const Op op = collective;
  const auto parts = std::ssize(parts_of(op)) * mesh.size_of(axis_of(collective));
  return parts > 1 && cost_of(op).message_bytes > 0;
}

/// Whether the node has work that can be recorded.
bool has_work(const Node& node, const Mesh& mesh) {
  if (const auto* const collective = std::get_if<Collective>(&node.op)) {
    return moves_bytes(*collective, mesh);
  }
  bool writes = false;
  for (const Access& access : accesses_of(node.op)) {
    if (access.writes && access.tensor.size() > 0) return true;
    writes = writes || access.writes;
  }
  return !writes;  // a delay writes nothing but takes time
}

/// The step's first run that lacks the times it should have.
const NodeRun* run_without_times(const ProfiledStep& step, const Mesh& mesh) {
  const std::vector<NodeRun>& runs = step.timeline.plan->runs();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const bool is_missing = !step.timeline.spans[i].is_known();
    if (is_missing && has_work(node_of(step, runs[i]), mesh)) return &runs[i];
  }
  return nullptr;
}

/// Whether the host queued the step's nodes of this phase as a graph.
bool is_in_graph(const HostTimes& host, Phase phase) {
  return phase == Phase::kData ? host.input_is_graph : host.is_graph;
}

/// Adds the steps' ops, and the host's records of queueing, to a profile.
class Joined {
 public:
  explicit Joined(Profile& profile) : profile_(profile) {}

  void add(const ProfiledStep& step) {
    const Program& program = step.timeline.plan->program();
    const Priced& priced = priced_of(program);
    const std::vector<NodeRun>& runs = step.timeline.plan->runs();
    std::set<NodeId> launched;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const Node& node = node_of(step, runs[i]);
      const Span& span = step.timeline.spans[i];
      const Tag tag{.program = priced.number, .step = step.timeline.step, .node = runs[i].first};
      const int device = runs[i].lane.device;
      if (span.is_known()) {
        profile_.ops.push_back({.tag = tag,
                                .node = &node,
                                .program = &program,
                                .cost = at(priced.costs, runs[i].first),
                                .device = device,
                                .start_s = span.begin_s,
                                .end_s = span.end_s});
      }
      const bool in_graph = is_in_graph(step.host(), node.phase);
      const NodeId launch = launch_of(node.phase);
      if (span.queued_s == 0 || (in_graph && !launched.insert(launch).second)) continue;
      profile_.queued.push_back({.tag = in_graph ? Tag{.step = tag.step, .node = launch} : tag,
                                 .label = in_graph ? label_of_launch(launch) : label_of(node.op),
                                 .device = in_graph ? 0 : device,
                                 .start_s = span.queued_s,
                                 .end_s = span.queued_until_s});
    }
  }

 private:
  struct Priced {
    int number = 0;
    std::vector<Cost> costs{};
  };

  const Priced& priced_of(const Program& program) {
    const auto [at, is_new] = priced_.try_emplace(&program);
    if (is_new) {
      at->second.number = static_cast<int>(priced_.size()) - 1;
      for (const Node& node : program.nodes()) at->second.costs.push_back(cost_of(node.op));
    }
    return at->second;
  }

  Profile& profile_;
  std::map<const Program*, Priced> priced_;
};

/// The times of a step's nodes on each device.
using NodeTimes = std::map<std::tuple<std::int64_t, NodeId, int>, Span>;

NodeTimes times_of(const GpuRecords& gpu) {
  NodeTimes times;
  for (const Record& record : node_records(gpu)) {
    times[{record.tag.step, record.tag.node, record.device}] = {.begin_s = record.start_s,
                                                                .end_s = record.end_s};
  }
  // A graph's launch belongs to device 0.
  for (const Record& queued : gpu.queued()) {
    Span& span = times[{queued.tag.step, queued.tag.node, queued.device}];
    span.queued_s = queued.start_s;
    span.queued_until_s = queued.end_s;
  }
  return times;
}

/// "12.345us", with a sign.
std::string signed_time(double seconds) {
  return fmt::format("{}{}", seconds < 0 ? "-" : "", table_time(std::abs(seconds)));
}

Overhead overhead_from(std::span<const double> plain, std::vector<double> differences) {
  Overhead overhead{.groups = std::ssize(differences)};
  if (differences.empty()) return overhead;
  std::sort(differences.begin(), differences.end());
  const std::size_t rank = interval_rank(differences.size());
  overhead.is_95 = rank > 0;
  const std::size_t outer = rank > 0 ? rank - 1 : 0;
  overhead.plain_s = median(plain);
  overhead.median_s = median(differences);
  overhead.low_s = differences[outer];
  overhead.high_s = differences[differences.size() - 1 - outer];
  return overhead;
}

}  // namespace

std::vector<Record> node_records(const GpuRecords& gpu) {
  std::map<std::tuple<std::int64_t, NodeId, int>, Record> records;
  for (const GpuActivity& activity : gpu.activities()) {
    if (!activity.is_work() || activity.tag.node < 0) continue;
    const auto [at, is_new] = records.try_emplace(
        {activity.tag.step, activity.tag.node, activity.device}, Record{.tag = activity.tag,
                                                                        .label = activity.name,
                                                                        .device = activity.device,
                                                                        .start_s = activity.start_s,
                                                                        .end_s = activity.end_s});
    if (!is_new) at->second.end_s = std::max(at->second.end_s, activity.end_s);
  }
  std::vector<Record> all;
  for (const auto& [key, record] : records) all.push_back(record);
  return all;
}

ProfiledSteps::ProfiledSteps(std::int64_t steps, std::size_t spans, std::int64_t max_spans) {
  const auto room = std::min(steps, max_spans / static_cast<std::int64_t>(spans));
  steps_.resize(static_cast<std::size_t>(room));
  for (ProfiledStep& step : steps_) step.timeline.spans.reserve(spans);
}

void ProfiledSteps::add(std::int64_t number, const Timeline& timeline, double reported_s,
                        double checkpoint_s) {
  const StepTimeline& step = *timeline.at(0);
  if (count_ == steps_.size()) {
    dropped_ += std::ssize(step.spans);
    return;
  }
  ProfiledStep& kept = steps_[count_++];
  kept.number = number;
  kept.reported_s = reported_s;
  kept.between_s = std::max(0.0, timeline.before_newest_s(kMainLane) - checkpoint_s);
  kept.checkpoint_s = checkpoint_s;
  kept.timeline = step;
}

void ProfiledSteps::amend(const GpuRecords& gpu) {
  const NodeTimes times = times_of(gpu);
  std::map<const Program*, std::shared_ptr<const RunPlan>> plans;
  for (ProfiledStep& step : std::span(steps_).first(count_)) {
    const Program& program = step.timeline.plan->program();
    auto& made = plans[&program];
    if (made == nullptr) made = std::make_shared<const RunPlan>(program, RunDetail::kNodes);
    step.timeline.plan = made;
    const RunPlan& plan = *made;
    step.timeline.clock_error_s = 0;  // it was the events' error
    step.timeline.spans.assign(plan.runs().size(), {});
    std::map<LaneId, double> lane_end_s;
    for (std::size_t i = 0; i < plan.runs().size(); ++i) {
      const NodeRun& run = plan.runs()[i];
      Span& span = step.timeline.spans[i];
      const auto at = times.find({step.timeline.step, run.first, run.lane.device});
      if (at != times.end()) {
        span = at->second;
        // A kernel that is launched ahead waits for the previous one after its start.
        double& before_s = lane_end_s[run.lane];
        span.begin_s = std::max(span.begin_s, before_s);
        before_s = span.end_s = std::max(span.end_s, span.begin_s);
      }
      const auto launch = times.find({step.timeline.step, launch_of(run.phase), 0});
      if (!is_in_graph(step.host(), run.phase) || launch == times.end()) continue;
      span.queued_s = launch->second.queued_s;
      span.queued_until_s = launch->second.queued_until_s;
    }
  }
}

Profile Profile::of(StepRange numbers) const {
  Profile part{.ops = {}, .queued = {}, .steps = {}, .dropped = dropped};
  StepRange range{std::numeric_limits<std::int64_t>::max(), 0};
  for (const ProfiledStep& step : steps) {
    if (!numbers.contains(step.number)) continue;
    part.steps.push_back(step);
    range.first = std::min(range.first, step.timeline.step);
    range.end = std::max(range.end, step.timeline.step + 1);
  }
  const auto in_range = [&](const auto& of_step) { return range.contains(of_step.tag.step); };
  std::copy_if(ops.begin(), ops.end(), std::back_inserter(part.ops), in_range);
  std::copy_if(queued.begin(), queued.end(), std::back_inserter(part.queued), in_range);
  if (part.steps.empty()) return part;
  const double begin_s = part.steps.front().host().begin_s;
  const double end_s = part.steps.back().host().end_s;
  std::copy_if(activities.begin(), activities.end(), std::back_inserter(part.activities),
               [&](const GpuActivity& activity) {
                 if (activity.tag.node != kPartOfNode) return in_range(activity);
                 return begin_s <= activity.start_s && activity.end_s <= end_s;
               });
  return part;
}

Profile Profile::of(std::span<const Phase> phases) const {
  Profile part = *this;
  std::set<std::pair<int, NodeId>> others;  // by program
  std::erase_if(part.ops, [&](const TimedOp& op) {
    const bool is_other = std::ranges::find(phases, op.node->phase) == phases.end();
    if (is_other) others.emplace(op.tag.program, op.tag.node);
    return is_other;
  });
  std::erase_if(part.queued, [&](const Record& record) {
    return others.contains({record.tag.program, record.tag.node});
  });
  return part;
}

Profile profile_of(std::span<const ProfiledStep> steps, std::int64_t dropped, const Mesh& mesh,
                   std::span<const GpuActivity> activities) {
  Profile profile{.ops = {}, .queued = {}, .steps = {}, .dropped = dropped};
  Joined joined(profile);
  for (const ProfiledStep& step : steps) {
    BARESTEP_REQUIRE(step.timeline.plan->detail() == RunDetail::kNodes,
                     "a profile is of steps that are measured by nodes");
    if (dropped > 0 && run_without_times(step, mesh) != nullptr) break;
    profile.steps.push_back(step);
    joined.add(step);
  }
  profile.activities.assign(activities.begin(), activities.end());
  const auto earlier = [](const auto& a, const auto& b) { return a.start_s < b.start_s; };
  std::stable_sort(profile.ops.begin(), profile.ops.end(), earlier);
  std::stable_sort(profile.queued.begin(), profile.queued.end(), earlier);
  return profile;
}

std::string node_without_record(std::span<const ProfiledStep> steps, const Mesh& mesh) {
  for (const ProfiledStep& step : steps) {
    const NodeRun* const run = run_without_times(step, mesh);
    if (run == nullptr) continue;
    const Node& node = node_of(step, *run);
    return fmt::format("{}{} in {}, step {}", label_of(node.op), node.of_block(),
                       name_of(node.phase), step.number);
  }
  return "";
}

Overhead overhead_of(std::span<const double> plain_s, std::span<const double> profiled_s) {
  const std::size_t pairs = std::min(plain_s.size(), profiled_s.size());
  // The plain steps next to the profiled ones.
  const auto plain = plain_s.last(pairs);
  std::vector<double> differences;
  for (std::size_t i = 0; i < pairs; ++i) differences.push_back(profiled_s[i] - plain[i]);
  Overhead overhead = overhead_from(plain, std::move(differences));
  overhead.is_of_pairs = true;
  return overhead;
}

Overhead overhead_of(std::span<const double> wall_s) {
  std::vector<double> plain;
  std::vector<double> differences;
  const std::size_t groups = wall_s.size() / kOverheadGroup;
  for (std::size_t i = 0; i < groups; ++i) {
    const auto of_group = wall_s.subspan(i * kOverheadGroup, kOverheadGroup);
    plain.insert(plain.end(), {of_group[0], of_group[3]});
    differences.push_back((of_group[1] + of_group[2] - of_group[0] - of_group[3]) / 2);
  }
  return overhead_from(plain, std::move(differences));
}

std::string overhead_text(const Overhead& overhead) {
  if (overhead.groups == 0) {
    return "The cost of profiling is unknown: measuring it takes four steps after warm-up that "
           "are not profiled.\n";
  }
  return fmt::format("Profiling adds {} to a step of {}, {:.2f} % ({} {} to {}, {} of steps {}).\n",
                     signed_time(overhead.median_s), table_time(overhead.plain_s),
                     100 * overhead.median_s / overhead.plain_s,
                     overhead.is_95 ? "95 % interval" : "too few for an interval; range",
                     signed_time(overhead.low_s), signed_time(overhead.high_s),
                     counted(overhead.groups, overhead.is_of_pairs ? "pair" : "group"),
                     overhead.is_of_pairs ? "without and with" : "without, with, with, without");
}

}  // namespace barestep
