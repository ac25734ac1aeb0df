#include "profiler/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "core/error.h"

namespace barestep {
namespace {

/// The first of the steps that lacks a record.
std::int64_t first_incomplete(std::span<const Program* const> programs,
                              std::span<const Record> records, StepRange steps) {
  std::map<std::int64_t, std::int64_t> missing;
  for (const Record& record : records) {
    const auto [at, is_new] = missing.try_emplace(record.tag.step, 0);
    if (is_new) {
      at->second = parts_of(*programs[static_cast<std::size_t>(record.tag.program)]);
    }
    --at->second;
  }
  for (std::int64_t step = steps.first; step < steps.end; ++step) {
    const auto at = missing.find(step);
    if (at == missing.end() || at->second > 0) return step;
  }
  return steps.end;
}

/// Whether the node has work that something can record.
bool has_work(const Node& node, bool exchanges) {
  if (std::holds_alternative<Collective>(node.op) && !exchanges) return false;
  bool writes = false;
  for (const Access& access : accesses_of(node.op)) {
    if (access.writes && access.tensor.size() > 0) return true;
    writes = writes || access.writes;
  }
  return !writes;  // a delay writes nothing and takes its time
}

/// The programs that the profile's steps ran, by step.
std::map<std::int64_t, int> programs_by_step(const Profile& profile) {
  std::map<std::int64_t, int> programs;
  for (const TimedOp& op : profile.ops) programs.emplace(op.tag.step, op.tag.program);
  for (const Record& record : profile.queued) {
    if (record.tag.node >= 0) programs.emplace(record.tag.step, record.tag.program);
  }
  return programs;
}

}  // namespace

std::int64_t parts_of(const Program& program) {
  std::int64_t parts = 0;
  for (const Node& node : program.nodes()) {
    parts += static_cast<std::int64_t>(lanes_of(program, node).size());
  }
  return parts;
}

Profile Profile::of(StepRange numbers) const {
  Profile part{.ops = {}, .queued = {}, .steps = {}, .dropped = dropped};
  StepRange range{std::numeric_limits<std::int64_t>::max(), 0};
  for (const HostStep& step : steps) {
    if (!numbers.contains(step.number)) continue;
    part.steps.push_back(step);
    range.first = std::min(range.first, step.step);
    range.end = std::max(range.end, step.step + 1);
  }
  const auto in_range = [&](const auto& of_step) { return range.contains(of_step.tag.step); };
  std::copy_if(ops.begin(), ops.end(), std::back_inserter(part.ops), in_range);
  std::copy_if(queued.begin(), queued.end(), std::back_inserter(part.queued), in_range);
  if (part.steps.empty()) return part;
  const double begin_s = part.steps.front().begin_s;
  const double end_s = part.steps.back().end_s;
  std::copy_if(activities.begin(), activities.end(), std::back_inserter(part.activities),
               [&](const GpuActivity& activity) {
                 if (activity.tag.node != kPartOfNode) return in_range(activity);
                 return begin_s <= activity.start_s && activity.end_s <= end_s;
               });
  return part;
}

Profile join(std::span<const Program* const> programs, const RecordCollector& collector,
             std::span<const HostStep> steps) {
  StepRange whole = collector.steps();
  if (collector.dropped() > 0) {
    whole.end = first_incomplete(programs, collector.records(), whole);
  }
  std::vector<std::vector<Cost>> costs;
  for (const Program* program : programs) {
    auto& of_program = costs.emplace_back();
    for (const Node& node : program->nodes()) of_program.push_back(cost_of(node.op));
  }

  Profile profile{.ops = {}, .queued = {}, .steps = {}, .dropped = collector.dropped()};
  for (const Record& record : collector.records()) {
    if (!whole.contains(record.tag.step)) continue;
    const auto number = static_cast<std::size_t>(record.tag.program);
    const auto id = static_cast<std::size_t>(record.tag.node);
    BARESTEP_REQUIRE(number < programs.size() && id < programs[number]->nodes().size(),
                     "a record names a node that no program has");
    profile.ops.push_back({.tag = record.tag,
                           .node = &programs[number]->nodes()[id],
                           .program = programs[number],
                           .cost = costs[number][id],
                           .device = record.device,
                           .start_s = record.start_s,
                           .end_s = record.end_s});
  }
  for (const Record& record : collector.queued()) {
    if (whole.contains(record.tag.step)) profile.queued.push_back(record);
  }
  for (const HostStep& step : steps) {
    if (whole.contains(step.step)) profile.steps.push_back(step);
  }
  const auto earlier = [](const auto& a, const auto& b) { return a.start_s < b.start_s; };
  std::stable_sort(profile.ops.begin(), profile.ops.end(), earlier);
  std::stable_sort(profile.queued.begin(), profile.queued.end(), earlier);
  return profile;
}

std::string node_without_record(std::span<const Program* const> programs, const Profile& profile,
                                bool exchanges) {
  std::set<std::pair<std::int64_t, NodeId>> recorded;
  for (const TimedOp& op : profile.ops) recorded.emplace(op.tag.step, op.tag.node);
  const auto programs_run = programs_by_step(profile);
  for (const HostStep& step : profile.steps) {
    const auto ran = programs_run.find(step.step);
    if (ran == programs_run.end()) return fmt::format("step {}", step.number);
    const Program& program = *programs[static_cast<std::size_t>(ran->second)];
    for (NodeId id = 0; id < program.size(); ++id) {
      const Node& node = program.nodes()[static_cast<std::size_t>(id)];
      if (recorded.contains({step.step, id}) || !has_work(node, exchanges)) continue;
      const std::string layer = node.layer < 0 ? "" : fmt::format(" of layer {}", node.layer);
      return fmt::format("{}{} in {}, step {}", label_of(node.op), layer, name_of(node.phase),
                         step.number);
    }
  }
  return "";
}

}  // namespace barestep
