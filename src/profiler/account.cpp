#include "profiler/account.h"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "core/units.h"

namespace barestep {

namespace {

/// The part for work of `phase` on `lane`, as seen from the compute lane of `device`.
Part part_of(Phase phase, bool is_copy, LaneId lane, int device) {
  if (phase == Phase::kData) return is_copy ? Part::kHostToDevice : Part::kDataWait;
  if (phase != Phase::kCommunication && lane.device != device && lane.lane == Lane::kCompute) {
    return Part::kOtherDevice;
  }
  return part_for(phase);
}

/// The part for a wait for a collective.
Part part_for(Axis axis) {
  if (axis == Axis::kTensor) return Part::kTensorRanks;
  return axis == Axis::kPipeline ? Part::kOtherStages : Part::kExposedCommunication;
}

Part part_of(const NodeRun& run, int device) {
  if (run.is_collective) return part_for(run.axis);
  if (run.mixes_phases && run.phase != Phase::kData) return Part::kGraph;
  return part_of(run.phase, run.is_copy, run.lane, device);
}

Part part_of(const TimedOp& op) {
  const bool is_copy = op_if<Copy>(op.node->op) != nullptr;
  return part_of(op.node->phase, is_copy, {op.device, op.node->lane}, 0);
}

/// The newest step of a timeline, as seen from a compute lane.
class TimelineSpans final : public Spans {
 public:
  TimelineSpans(const Timeline& timeline, LaneId lane)
      : timeline_(timeline), step_(*timeline.at(0)), lane_(lane) {}

  [[nodiscard]] WallTime wall() const override { return timeline_.wall_of_newest(lane_); }
  [[nodiscard]] WallTime fetch() const override {
    return {step_.host.fetch_begin_s, step_.host.fetched_s};
  }
  [[nodiscard]] std::size_t size() const override { return step_.spans.size(); }
  [[nodiscard]] RunOfStep work_at(std::size_t number) const override { return {number, 0}; }

  [[nodiscard]] Work work(RunOfStep which) const override {
    const NodeRun& of = run(which);
    const Span& times = span(which);
    return {times.queued_s,   times.begin_s,           times.end_s, part_of(of, lane_.device),
            of.lane == lane_, of.phase == Phase::kData};
  }

  void add_parts(RunOfStep of, Last& last) const override {
    for (const std::size_t part : run(of).parts) {
      const RunOfStep other{part, of.steps_back};
      last.add(other, span(other).begin_s);
    }
  }

  void add_awaited(RunOfStep held, Last& last) const override {
    const NodeRun& waiting = run(held);
    const auto add = [&](RunOfStep other) { last.add(other, span(other).end_s); };
    for (const NodeRun::AwaitedPart& awaited : waiting.awaited) {
      if (!is_reached(held.steps_back, awaited.steps_back)) continue;
      const int steps_back = held.steps_back + awaited.steps_back;
      const RunPlan& plan = *timeline_.at(steps_back)->plan;
      add({plan.runs_of(awaited.node)[awaited.part], steps_back});
    }
    const StepTimeline* const before = timeline_.at(held.steps_back + 1);
    if (waiting.previous) {
      add({*waiting.previous, held.steps_back});
    } else if (before != nullptr) {
      const bool joins = timeline_.at(held.steps_back)->host.joins_lanes;
      for (const auto& [lane, runs] : before->plan->lanes()) {
        if (joins || lane == waiting.lane) add({runs.back(), held.steps_back + 1});
      }
    }
  }

 private:
  [[nodiscard]] const NodeRun& run(RunOfStep which) const {
    return timeline_.at(which.steps_back)->plan->runs()[which.run];
  }
  [[nodiscard]] const Span& span(RunOfStep which) const {
    return timeline_.at(which.steps_back)->spans[which.run];
  }

  /// Whether a wait of the step `from` steps ago refers to a step that is kept and runs the same
  /// program without a change in between.
  [[nodiscard]] bool is_reached(int from, int steps_back) const {
    for (int step = from; step < from + steps_back; ++step) {
      if (timeline_.at(step + 1) == nullptr || timeline_.at(step)->host.joins_lanes) return false;
    }
    return &timeline_.at(from + steps_back)->plan->program() ==
           &timeline_.at(from)->plan->program();
  }

  const Timeline& timeline_;
  const StepTimeline& step_;
  LaneId lane_;
};

using StretchVisitor = std::function<void(const CauseSpan&)>;

/// Divides a step's wall time into stretches by walking along its lane. Allocates nothing.
class SpansWalk {
 public:
  SpansWalk(const Spans& spans, const StretchVisitor& visit)
      : spans_(spans), visit_(visit), wall_(spans.wall()), now_s_(wall_.begin_s) {}

  void run() {
    for (std::size_t number = 0; number < spans_.size(); ++number) {
      const RunOfStep own = spans_.work_at(number);
      const Spans::Work work = spans_.work(own);
      if (!work.is_own) continue;
      wait_for(own, work.begin_s);
      spend({.part = work.part, .is_own_work = true, .held_by = own}, work.end_s);
    }
    wait_for_other_lanes();
    const WallTime fetch = spans_.fetch();
    if (fetch.end_s > fetch.begin_s) {
      spend({.part = Part::kHost}, fetch.begin_s);
      spend({.part = Part::kDataWait}, fetch.end_s);
    }
    while (now_s_ < wall_.end_s) {
      const CauseSpan cause = spans_.end_at(now_s_, wall_.end_s);
      spend(cause, cause.end_s);
    }
  }

 private:
  /// The reason why `held` has not ended, and until when that certainly lasts. The walk only goes
  /// back in time or in the program, so it terminates.
  [[nodiscard]] CauseSpan cause(RunOfStep held) const {
    Spans::Work work = spans_.work(held);
    for (;;) {
      Spans::Last next{.after_s = now_s_};
      if (work.begin_s <= now_s_) {
        spans_.add_parts(held, next);
      } else {
        spans_.add_awaited(held, next);
      }
      if (!next.work) break;
      held = *next.work;
      work = spans_.work(held);
    }
    if (work.begin_s <= now_s_) return {now_s_, work.end_s, work.part, false, held};
    if (work.is_input) return {now_s_, work.begin_s, Part::kDataWait};
    if (work.queued_s <= now_s_) return {now_s_, work.begin_s, Part::kIdle};
    return spans_.host_at(now_s_, std::min(work.queued_s, work.begin_s));
  }

  /// Assigns the time up to `until_s` to the stretch's cause.
  void spend(CauseSpan stretch, double until_s) {
    stretch.begin_s = now_s_;
    stretch.end_s = std::min(until_s, wall_.end_s);
    if (stretch.end_s <= now_s_) return;
    now_s_ = stretch.end_s;
    visit_(stretch);
  }

  /// The lane waits for one of the step's pieces of work until `until_s`.
  void wait_for(RunOfStep which, double until_s) {
    until_s = std::min(until_s, wall_.end_s);
    while (now_s_ < until_s) {
      const CauseSpan held = cause(which);
      spend(held, std::min(held.end_s, until_s));
    }
  }

  /// The work of other lanes after this one is done, if the step ends on the host.
  void wait_for_other_lanes() {
    while (now_s_ < wall_.end_s) {
      Spans::Last last{.after_s = now_s_};
      for (std::size_t number = 0; number < spans_.size(); ++number) {
        const RunOfStep which = spans_.work_at(number);
        const Spans::Work work = spans_.work(which);
        if (!work.is_input) last.add(which, work.end_s);
      }
      if (!last.work) return;
      wait_for(*last.work, last.after_s);
    }
  }

  const Spans& spans_;
  const StretchVisitor& visit_;
  WallTime wall_;
  double now_s_;
};

/// The seconds between `begin_s` and `end_s` in which communication of the last two steps ran on
/// the device.
double communicated_s(const Timeline& timeline, int device, double begin_s, double end_s) {
  double seconds = 0;
  // Communication left over from the previous step may run during the newest one.
  for (const int steps_back : {0, 1}) {
    const StepTimeline* const step = timeline.at(steps_back);
    if (step == nullptr) continue;
    const auto runs = step->plan->runs_on({device, Lane::kComm});
    const auto end_of = [&](std::size_t i) { return step->spans[i].end_s; };
    for (auto i = std::ranges::upper_bound(runs, begin_s, {}, end_of); i != runs.end(); ++i) {
      const Span& span = step->spans[*i];
      if (span.begin_s >= end_s) break;
      if (!is_exchange(part_of(step->plan->runs()[*i], device))) continue;
      seconds += std::max(0.0, std::min(span.end_s, end_s) - std::max(span.begin_s, begin_s));
    }
  }
  return seconds;
}

std::string row(std::string_view name, double seconds, double wall_s) {
  // Rounding errors of a sum are shown as 0, not as a negative number.
  constexpr double kNothing = 1e-9;
  if (std::abs(seconds) < kNothing) seconds = 0;
  return fmt::format("  {:<24}{:>12.4f} ms{:>8.2f} %\n", name, 1e3 * seconds,
                     100 * seconds / wall_s);
}

/// The op type and block that take longest in a part: "gemm of net.6 (1.204 ms, 92 % of its
/// roof)".
std::string largest_work(const Profile& profile, Part part, const Peaks& peaks) {
  struct Sum {
    double seconds = 0, min_s = 0;
  };
  std::map<std::string, Sum> sums;
  for (const TimedOp& op : profile.ops) {
    if (part_of(op) != part) continue;
    Sum& sum = sums[std::string(label_of(op.node->op)) + op.node->of_block()];
    sum.seconds += op.seconds();
    sum.min_s += peaks.min_s(op.cost);
  }
  if (sums.empty()) return "";
  const auto max = std::max_element(sums.begin(), sums.end(), [](const auto& a, const auto& b) {
    return a.second.seconds < b.second.seconds;
  });
  const auto& [name, sum] = *max;
  const double step_s = sum.seconds / static_cast<double>(profile.steps.size());
  const std::string roof =
      sum.min_s > 0 ? fmt::format(", {:.0f} % of its roof", 100 * sum.min_s / sum.seconds) : "";
  return fmt::format("; its largest piece is {} ({}{})", name, table_time(step_s), roof);
}

struct Interval {
  double begin_s = 0, end_s = 0;
};

DeviceWork::Kind kind_of(const TimedOp& op) {
  if (std::holds_alternative<Collective>(op.node->op)) return DeviceWork::Kind::kCommunication;
  return op_if<Copy>(op.node->op) != nullptr ? DeviceWork::Kind::kCopy : DeviceWork::Kind::kCompute;
}

/// Adds an interval that begins no earlier than those before it.
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

}  // namespace

void visit_stretches(const Spans& spans, const StretchVisitor& visit) {
  SpansWalk(spans, visit).run();
}

void visit_stretches(const Timeline& timeline, LaneId lane, const StretchVisitor& visit) {
  visit_stretches(TimelineSpans(timeline, lane), visit);
}

StepAccount account_of(const Timeline& timeline, LaneId lane) {
  const WallTime wall = timeline.wall_of_newest(lane);
  StepAccount account{.wall_s = wall.seconds(),
                      .between_s = timeline.before_newest_s(lane),
                      .clock_error_s = timeline.at(0)->clock_error_s};
  double hidden_s = communicated_s(timeline, lane.device, wall.begin_s, wall.end_s);
  const std::vector<WallTime>& looks = timeline.at(0)->looks;
  visit_stretches(timeline, lane, [&](const CauseSpan& stretch) {
    double looked_s = 0;
    for (const WallTime& look : looks) {
      looked_s += std::max(
          0.0, std::min(look.end_s, stretch.end_s) - std::max(look.begin_s, stretch.begin_s));
    }
    account[Part::kVerification] += looked_s;
    account[stretch.part] += stretch.seconds() - looked_s;
    if (!is_exchange(stretch.part)) return;
    hidden_s -= communicated_s(timeline, lane.device, stretch.begin_s, stretch.end_s);
  });
  account.hidden_communication_s = std::max(0.0, hidden_s);
  return account;
}

std::vector<StepAccount> accounts_of(const Profile& profile) {
  std::vector<StepAccount> accounts;
  Timeline timeline;
  for (const ProfiledStep& step : profile.steps) {
    const StepTimeline* const before = timeline.at(0);
    const bool follows = before != nullptr && step.timeline.step == before->step + 1;
    if (!follows) timeline = {};
    timeline.add(step.timeline);
    if (!follows && step.host().overlaps_previous) continue;
    accounts.push_back(account_of(timeline, kMainLane));
    accounts.back().number = step.number;
    accounts.back().between_s = step.between_s;
    accounts.back().checkpoint_s = step.checkpoint_s;
  }
  return accounts;
}

double StepAccount::waits_for_others_s() const {
  double seconds = part_s[Part::kOtherDevice];
  for (const Part part : kValuesOf<Part>) seconds += is_exchange(part) ? part_s[part] : 0;
  return seconds;
}

double StepAccount::seconds_of(std::string_view key) const {
  double seconds = 0;
  for (const Part part : kValuesOf<Part>) seconds += traits_of(part).key == key ? part_s[part] : 0;
  return seconds;
}

void MeanAccount::add(const StepAccount& account) {
  sum_.wall_s += account.wall_s;
  for (const Part part : kValuesOf<Part>) sum_[part] += account[part];
  sum_.hidden_communication_s += account.hidden_communication_s;
  sum_.between_s += account.between_s;
  sum_.checkpoint_s += account.checkpoint_s;
  sum_.clock_error_s = std::max(sum_.clock_error_s, account.clock_error_s);
  ++count_;
}

StepAccount MeanAccount::mean() const {
  StepAccount mean = sum_;
  const auto count = static_cast<double>(count_);
  mean.wall_s /= count;
  for (double& part_s : mean.part_s) part_s /= count;
  mean.hidden_communication_s /= count;
  mean.between_s /= count;
  mean.checkpoint_s /= count;
  return mean;
}

std::string account_table(const StepAccount& account) {
  std::string text;
  for (const Part part : kValuesOf<Part>) {
    if (!traits_of(part).is_rare || account[part] > 0)
      text += row(name_of(part), account[part], account.wall_s);
  }
  text += row("wall time", account.wall_s, account.wall_s);
  text += row("between steps", account.between_s, account.wall_s);
  if (account.checkpoint_s > 0) {
    text += row("checkpoint", account.checkpoint_s, account.wall_s);
  }
  if (account.hidden_communication_s > 0) {
    text += row("hidden communication", account.hidden_communication_s, account.wall_s);
  }
  if (account.clock_error_s > 0) {
    text += row("error of the clocks", account.clock_error_s, account.wall_s);
  }
  return text;
}

std::string bottleneck(const Profile& profile, const MeanAccount& account, const Peaks& peaks) {
  if (account.count() == 0) return "";
  const StepAccount mean = account.mean();
  const Part part = *std::ranges::max_element(kValuesOf<Part>, {},
                                              [&](Part candidate) { return mean[candidate]; });
  return fmt::format(
      "The bottleneck is {}: {} of a step, {}{}.\n", subject_of(part),
      percent_text(mean[part] / mean.wall_s), table_time(mean[part]),
      cause_of(part).empty() ? largest_work(profile, part, peaks) : std::string(cause_of(part)));
}

Breakdown breakdown_of(const Profile& profile, int device) {
  std::vector<DeviceWork> works;
  for (const TimedOp& op : profile.ops) {
    if (op.device != device) continue;
    works.push_back({.kind = kind_of(op), .begin_s = op.start_s, .end_s = op.end_s});
  }
  return breakdown_of(works);
}

Breakdown breakdown_of(std::span<const DeviceWork> works) {
  std::vector<Interval> busy, compute, communication;
  for (const DeviceWork& work : works) {
    const Interval interval{work.begin_s, work.end_s};
    unite(busy, interval);
    if (work.kind == DeviceWork::Kind::kCompute) unite(compute, interval);
    if (work.kind == DeviceWork::Kind::kCommunication) unite(communication, interval);
  }
  Breakdown breakdown;
  if (busy.empty()) return breakdown;
  breakdown.span_s = busy.back().end_s - busy.front().begin_s;
  breakdown.compute_s = length(compute);
  breakdown.idle_s = breakdown.span_s - length(busy);
  breakdown.non_compute_s = length(busy) - breakdown.compute_s;
  breakdown.communication_s = length(communication);
  if (!communication.empty()) {
    breakdown.overlap = common_length(communication, compute) / breakdown.communication_s;
  }
  return breakdown;
}

std::string breakdown_text(const Breakdown& breakdown) {
  if (breakdown.span_s == 0) return "";
  const auto percent = [&](double seconds) { return percent_text(seconds / breakdown.span_s); };
  const std::string overlap = breakdown.overlap ? "; " + percent_text(*breakdown.overlap) +
                                                      " of communication overlaps computation"
                                                : "";
  return fmt::format(
      "From first to last op the device computes {} of {}, only copies or communicates {}, and is "
      "idle {}{}.\n",
      percent(breakdown.compute_s), table_time(breakdown.span_s), percent(breakdown.non_compute_s),
      percent(breakdown.idle_s), overlap);
}

}  // namespace barestep
