#include "lab/explain/trace_account.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

namespace barestep {
namespace {

/// A cause that lasts until `end_ns` at least.
using StretchVisitorNs = std::function<void(const TracedStretch&)>;

/// The stretch of a list that contains a moment, and otherwise when the next one begins.
struct HostState {
  const HostStretch* in = nullptr;
  std::int64_t until_ns = std::numeric_limits<std::int64_t>::max();
};

/// The stretches are united.
HostState state_at(const std::vector<HostStretch>& stretches, std::int64_t now_ns) {
  const auto after = std::ranges::upper_bound(stretches, now_ns, {}, &HostStretch::begin_ns);
  HostState state;
  if (after != stretches.end()) state.until_ns = after->begin_ns;
  if (after == stretches.begin()) return state;
  const HostStretch& last = *std::prev(after);
  if (last.end_ns > now_ns) {
    state.in = &last;
    state.until_ns = std::min(state.until_ns, last.end_ns);
  }
  return state;
}

/// Finds the cause that holds unfinished work of a rank.
class TraceCauses {
 public:
  TraceCauses(const TracedRun& run, std::size_t rank)
      : run_(run), rank_(run.ranks[rank]), index_(rank) {}

  [[nodiscard]] const TracedWork& work(std::size_t i) const { return run_.works[i]; }

  /// The part of work that runs, as seen from the rank's main lane.
  [[nodiscard]] Part part_of(std::size_t i) const {
    const TracedWork& each = work(i);
    const bool is_elsewhere =
        each.rank != index_ ||
        (!rank_.on_host &&
         rank_.process_of(each) != rank_.file.rows[rank_.lanes[rank_.main].row].process);
    return is_elsewhere && traits_of(each.part).computes ? Part::kOtherDevice : each.part;
  }

  /// The reason why `held` has not ended at `now_ns`, and until when that certainly lasts. Every
  /// step of the walk goes back in time or in the program, so it terminates.
  [[nodiscard]] TracedStretch cause(std::size_t held, std::int64_t now_ns) const {
    for (;;) {
      const std::optional<std::size_t> next =
          work(held).begin_ns <= now_ns ? late_part(held, now_ns) : holder_of(held, now_ns);
      if (!next) break;
      held = *next;
    }
    const TracedWork& last = work(held);
    if (last.begin_ns <= now_ns) return {now_ns, last.end_ns, part_of(held), held};
    if (last.is_input) return {now_ns, last.begin_ns, Part::kDataWait};
    if (rank_.on_host && (!last.is_collective() || last.lane == rank_.main)) {
      return host_at(now_ns, last.begin_ns);
    }
    if (last.queued_ns.value_or(now_ns) > now_ns) {
      return host_at(now_ns, std::min(*last.queued_ns, last.begin_ns));
    }
    return {now_ns, last.begin_ns, Part::kIdle};
  }

  /// What kept the host, which had nothing queued.
  [[nodiscard]] TracedStretch host_at(std::int64_t now_ns, std::int64_t until_ns) const {
    const HostState loading = state_at(rank_.loading, now_ns);
    until_ns = std::min(until_ns, loading.until_ns);
    if (loading.in != nullptr) return {now_ns, until_ns, Part::kDataWait};
    if (rank_.on_host) return other_thread_at(now_ns, until_ns);
    const HostState blocked = state_at(rank_.blocked, now_ns);
    until_ns = std::min(until_ns, blocked.until_ns);
    if (blocked.in == nullptr) return {now_ns, until_ns, Part::kHost};
    // The host waits for what the device does.
    for (std::size_t lane = 0; lane < rank_.lanes.size(); ++lane) {
      const std::optional<std::size_t> running = running_on(rank_.lanes[lane], now_ns);
      if (!running) continue;
      return {now_ns, std::min(until_ns, work(*running).end_ns), part_of(*running), running};
    }
    return {now_ns, std::min(until_ns, next_begin_ns(now_ns)), Part::kHost};
  }

 private:
  /// In a trace without a device, the thread that trains may wait for autograd's.
  [[nodiscard]] TracedStretch other_thread_at(std::int64_t now_ns, std::int64_t until_ns) const {
    for (const TracedLane& lane : rank_.lanes) {
      const std::optional<std::size_t> running = running_on(lane, now_ns);
      if (!running || work(*running).part != Part::kBackward) continue;
      return {now_ns, std::min(until_ns, work(*running).end_ns), Part::kBackward, running};
    }
    return {now_ns, std::min(until_ns, next_begin_ns(now_ns)), Part::kHost};
  }

  [[nodiscard]] std::optional<std::size_t> running_on(const TracedLane& lane,
                                                      std::int64_t now_ns) const {
    const auto begin = [&](std::size_t i) { return work(i).begin_ns; };
    const auto after = std::ranges::upper_bound(lane.works, now_ns, {}, begin);
    if (after == lane.works.begin() || work(*std::prev(after)).end_ns <= now_ns)
      return std::nullopt;
    return *std::prev(after);
  }

  [[nodiscard]] std::int64_t next_begin_ns(std::int64_t now_ns) const {
    std::int64_t next_ns = std::numeric_limits<std::int64_t>::max();
    const auto begin = [&](std::size_t i) { return work(i).begin_ns; };
    for (const TracedLane& lane : rank_.lanes) {
      const auto after = std::ranges::upper_bound(lane.works, now_ns, {}, begin);
      if (after != lane.works.end()) next_ns = std::min(next_ns, work(*after).begin_ns);
    }
    return next_ns;
  }

  /// Another device's part of the same collective of this process that begins last, if it has yet
  /// to begin.
  [[nodiscard]] std::optional<std::size_t> late_part(std::size_t held, std::int64_t now_ns) const {
    std::optional<std::size_t> late;
    const auto exchange = run_.exchange_of.find(held);
    if (exchange == run_.exchange_of.end() || work(held).node < 0) return late;
    for (const std::optional<std::size_t>& other : run_.exchanges[exchange->second].works) {
      if (!other || !is_in_process(work(*other))) continue;
      if (work(*other).begin_ns > (late ? work(*late).begin_ns : now_ns)) late = other;
    }
    return late;
  }

  [[nodiscard]] bool is_in_process(const TracedWork& other) const {
    return run_.ranks[other.rank].file.process == rank_.file.process;
  }

  /// Of the unfinished works that must end before `held` can begin, the one that ends last.
  [[nodiscard]] std::optional<std::size_t> holder_of(std::size_t held, std::int64_t now_ns) const {
    const TracedWork& of = work(held);
    std::optional<std::size_t> last;
    const auto consider = [&](std::size_t other) {
      if (work(other).end_ns > (last ? work(*last).end_ns : now_ns)) last = other;
    };
    if (of.node >= 0) {
      for (const std::size_t other : of.awaited) consider(other);
      if (of.previous) consider(*of.previous);
      return last;
    }
    // Times of others are rounded, and kernels may begin before the one ahead of them ends: only
    // what ends before the work begins can have held it.
    const std::int64_t noticed_ns = noticed_by(of);
    const auto consider_ended = [&](std::size_t other) {
      const std::int64_t limit_ns = work(other).is_collective() ? noticed_ns : of.begin_ns;
      if (work(other).end_ns <= limit_ns && work(other).begin_ns < of.begin_ns) consider(other);
    };
    for (const std::size_t other : of.awaited) consider_ended(other);
    if (of.previous) consider_ended(*of.previous);
    const bool is_late = of.queued_ns.value_or(now_ns) > now_ns;
    if (last || rank_.has_stream_waits || is_late) return last;
    for (std::size_t lane = 0; lane < rank_.lanes.size(); ++lane) {
      if (lane == of.lane) continue;
      const auto end = [&](std::size_t i) { return work(i).end_ns; };
      const auto& works = rank_.lanes[lane].works;
      const auto after = std::ranges::upper_bound(works, noticed_ns, {}, end);
      if (after != works.begin()) consider_ended(*std::prev(after));
    }
    return last;
  }

  /// Until when a collective may end that held this work.
  [[nodiscard]] std::int64_t noticed_by(const TracedWork& of) const {
    if (!rank_.on_host || of.is_collective() || !of.previous) return of.begin_ns;
    const std::int64_t free_ns = std::min(of.begin_ns, work(*of.previous).end_ns);
    return noticed_until({free_ns, of.begin_ns});
  }

  const TracedRun& run_;
  const TracedRank& rank_;
  std::size_t index_;
};

/// Divides a step's wall time into stretches by walking along the main lane.
class TraceWalk {
 public:
  TraceWalk(const TracedRun& run, std::size_t rank, std::size_t step)
      : run_(run),
        rank_(run.ranks[rank]),
        step_(step),
        wall_(rank_.steps[step]),
        causes_(run, rank),
        now_ns_(wall_.wall_begin_ns) {}

  void visit_stretches(const StretchVisitorNs& visit) {
    for (const std::size_t i : rank_.lanes[rank_.main].works_around(step_)) {
      const TracedWork& work = run_.works[i];
      if (work.step != step_) continue;
      wait_for(i, work.begin_ns, visit);
      spend({.part = causes_.part_of(i), .held_by = i, .is_own_work = true}, work.end_ns, visit);
    }
    wait_for_other_lanes(visit);
    if (wall_.fetched_ns > wall_.fetch_begin_ns) {
      spend({.part = Part::kHost}, wall_.fetch_begin_ns, visit);
      spend({.part = Part::kDataWait}, wall_.fetched_ns, visit);
    }
    finish(visit);
  }

 private:
  /// Assigns the time up to `until_ns` to the stretch's cause.
  void spend(TracedStretch stretch, std::int64_t until_ns, const StretchVisitorNs& visit) {
    stretch.begin_ns = now_ns_;
    stretch.end_ns = std::min(until_ns, wall_.wall_end_ns);
    if (stretch.end_ns <= now_ns_) return;
    now_ns_ = stretch.end_ns;
    visit(stretch);
  }

  void wait_for(std::size_t work, std::int64_t until_ns, const StretchVisitorNs& visit) {
    until_ns = std::min(until_ns, wall_.wall_end_ns);
    while (now_ns_ < until_ns) {
      const TracedStretch cause = causes_.cause(work, now_ns_);
      spend(cause, std::min(std::max(cause.end_ns, now_ns_ + 1), until_ns), visit);
    }
  }

  /// The work of other lanes after this one is done, if the step ends on the host.
  void wait_for_other_lanes(const StretchVisitorNs& visit) {
    while (now_ns_ < wall_.wall_end_ns) {
      std::optional<std::size_t> last;
      for (const TracedLane& lane : rank_.lanes) {
        for (const std::size_t i : lane.works_around(step_)) {
          const TracedWork& work = run_.works[i];
          if (work.step != step_ || work.is_input) continue;
          // Work that outlives the step did not hold its end.
          if (work.node < 0 && work.end_ns > wall_.wall_end_ns) continue;
          if (work.end_ns > (last ? run_.works[*last].end_ns : now_ns_)) last = i;
        }
      }
      if (!last) return;
      wait_for(*last, run_.works[*last].end_ns, visit);
    }
  }

  /// The host's work after the device's; barestep's host only notices the end.
  void finish(const StretchVisitorNs& visit) {
    if (rank_.file.is_ours) return spend({.part = Part::kIdle}, wall_.wall_end_ns, visit);
    while (now_ns_ < wall_.wall_end_ns) {
      const TracedStretch cause = causes_.host_at(now_ns_, wall_.wall_end_ns);
      spend(cause, std::max(cause.end_ns, now_ns_ + 1), visit);
    }
  }

  const TracedRun& run_;
  const TracedRank& rank_;
  std::size_t step_;
  const RankStep& wall_;
  TraceCauses causes_;
  std::int64_t now_ns_;
};

/// When a rank communicated.
std::vector<HostStretch> communication_of(const TracedRun& run, std::size_t rank) {
  std::vector<HostStretch> all;
  for (const TracedWork& work : run.works) {
    const bool counts = work.rank == rank && work.part == Part::kExposedCommunication;
    if (counts) all.push_back({work.begin_ns, work.end_ns});
  }
  return united(std::move(all));
}

std::int64_t common_ns(const std::vector<HostStretch>& intervals, std::int64_t begin_ns,
                       std::int64_t end_ns) {
  std::int64_t ns = 0;
  auto each = std::ranges::upper_bound(intervals, begin_ns, {}, &HostStretch::end_ns);
  for (; each != intervals.end() && each->begin_ns < end_ns; ++each) {
    ns += std::max<std::int64_t>(
        0, std::min(each->end_ns, end_ns) - std::max(each->begin_ns, begin_ns));
  }
  return ns;
}

/// Collects a run's account.
class RunSums {
 public:
  explicit RunSums(const TracedRun& run) : run_(run) {
    const std::size_t ranks = run.ranks.size();
    sums_.waited_ns.assign(ranks, std::vector<std::int64_t>(ranks, 0));
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      communication_.push_back(communication_of(run, rank));
    }
    add_buckets();
  }

  void add(std::size_t rank, std::size_t step) {
    const RankStep& of = run_.ranks[rank].steps[step];
    TracedAccount account{
        .rank = rank, .number = of.number, .wall_ns = of.wall_end_ns - of.wall_begin_ns};
    account.hidden_ns = common_ns(communication_[rank], of.wall_begin_ns, of.wall_end_ns);
    visit_stretches(run_, rank, step, [&](const TracedStretch& stretch) {
      account.part_ns[stretch.part] += stretch.ns();
      if (stretch.part != Part::kExposedCommunication) return;
      account.hidden_ns -= common_ns(communication_[rank], stretch.begin_ns, stretch.end_ns);
      add_exposed(rank, stretch, account);
    });
    account.hidden_ns = std::max<std::int64_t>(0, account.hidden_ns);
    sums_.accounts.push_back(account);
  }

  [[nodiscard]] RunAccount take() {
    std::ranges::stable_sort(sums_.accounts, {}, &TracedAccount::number);
    return std::move(sums_);
  }

 private:
  void add_exposed(std::size_t rank, const TracedStretch& stretch, TracedAccount& account) {
    const auto found = run_.exchange_of.find(stretch.held_by.value_or(run_.works.size()));
    if (found == run_.exchange_of.end()) return;
    const TracedExchange& exchange = run_.exchanges[found->second];
    BucketAccount& bucket = sums_.buckets[bucket_of_[found->second]];
    bucket.exposed_ns += stretch.ns();
    if (!exchange.last_begin_ns) return;
    const std::int64_t border_ns =
        std::clamp(*exchange.last_begin_ns, stretch.begin_ns, stretch.end_ns);
    account.waiting_ns += border_ns - stretch.begin_ns;
    bucket.waiting_ns += border_ns - stretch.begin_ns;
    sums_.waited_ns[rank][*exchange.last_rank] += border_ns - stretch.begin_ns;
  }

  /// A bucket of every step is one row: the n-th of its name and bytes in a step.
  void add_buckets() {
    std::map<std::tuple<std::string, std::int64_t, std::int64_t>, std::size_t> rows;
    std::map<std::tuple<std::int64_t, std::string, std::int64_t>, std::int64_t> counts;
    for (const TracedExchange& exchange : run_.exchanges) {
      const TracedCollective* what = nullptr;
      for (std::size_t rank = 0; rank < exchange.works.size(); ++rank) {
        if (!exchange.works[rank]) continue;
        const auto of = static_cast<std::size_t>(run_.works[*exchange.works[rank]].collective);
        what = &run_.ranks[rank].file.collectives[of];
      }
      const std::int64_t n = counts[{exchange.step, what->name, what->bytes}]++;
      const auto [at, is_new] =
          rows.try_emplace({what->name, what->bytes, n}, sums_.buckets.size());
      if (is_new) {
        sums_.buckets.push_back({.name = what->name, .bytes = what->bytes, .ranks = what->ranks});
      }
      bucket_of_.push_back(at->second);
      add_times(exchange, sums_.buckets[at->second]);
    }
  }

  void add_times(const TracedExchange& exchange, BucketAccount& bucket) {
    ++bucket.count;
    std::optional<std::int64_t> moving_ns;
    for (const std::optional<std::size_t>& i : exchange.works) {
      if (!i) continue;
      const TracedWork& work = run_.works[*i];
      ++bucket.works;
      bucket.duration_ns += work.end_ns - work.begin_ns;
      const std::int64_t from_ns = exchange.last_begin_ns.value_or(work.begin_ns);
      const std::int64_t ns = std::max<std::int64_t>(1, work.end_ns - from_ns);
      moving_ns = std::min(moving_ns.value_or(ns), ns);
    }
    bucket.moving_ns += moving_ns.value_or(0);
    if (bucket.ranks == 0 && exchange.last_begin_ns) {
      bucket.ranks = static_cast<int>(run_.ranks.size());
    }
  }

  const TracedRun& run_;
  RunAccount sums_;
  std::vector<std::vector<HostStretch>> communication_;  // by rank
  std::vector<std::size_t> bucket_of_;                   // by exchange
};

}  // namespace

void visit_stretches(const TracedRun& run, std::size_t rank, std::size_t step,
                     const StretchVisitorNs& visit) {
  TraceWalk(run, rank, step).visit_stretches(visit);
}

double BucketAccount::bus_bytes_per_s() const {
  if (ranks < 2 || bytes == 0 || moving_ns == 0) return 0;
  const double n = ranks;
  const double factor = name == "all_reduce" ? 2 * (n - 1) / n
                        : name == "all_gather" || name == "reduce_scatter" || name == "all_to_all"
                            ? (n - 1) / n
                            : 1;
  return factor * static_cast<double>(bytes) * static_cast<double>(count) /
         (1e-9 * static_cast<double>(moving_ns));
}

namespace {

/// The calls before the last step's end, by correlation.
std::set<std::int64_t> launched_in_steps(const TracedRank& rank) {
  std::set<std::int64_t> calls;
  for (const TraceEvent& event : rank.file.events) {
    const bool counts = event.kind == TraceEvent::Kind::kCall &&
                        event.begin_ns + rank.shift_ns <= rank.steps.back().end_ns;
    if (counts) calls.insert(event.correlation);
  }
  return calls;
}

}  // namespace

std::vector<DeviceBreakdown> breakdowns_of(const TracedRun& run) {
  std::vector<DeviceBreakdown> breakdowns;
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const TracedRank& of = run.ranks[rank];
    const std::int64_t origin_ns = of.file.events.front().begin_ns;
    const std::set<std::int64_t> launched = launched_in_steps(of);
    std::map<std::string, std::vector<DeviceWork>> devices;
    for (const TraceEvent& event : of.file.events) {
      using Kind = TraceEvent::Kind;
      const bool is_copy = event.kind == Kind::kCopy || event.kind == Kind::kFill;
      if (!is_copy && event.kind != Kind::kKernel) continue;
      if (!launched.empty() && !launched.contains(event.correlation)) continue;
      devices[of.file.rows[event.row].process].push_back(
          {.kind = is_copy                 ? DeviceWork::Kind::kCopy
                   : event.collective >= 0 ? DeviceWork::Kind::kCommunication
                                           : DeviceWork::Kind::kCompute,
           .begin_s = 1e-9 * static_cast<double>(event.begin_ns - origin_ns),
           .end_s = 1e-9 * static_cast<double>(event.end_ns - origin_ns)});
    }
    for (const auto& [device, works] : devices) {
      breakdowns.push_back({rank, device, breakdown_of(works)});
    }
  }
  return breakdowns;
}

RunAccount account_of(const TracedRun& run) {
  RunSums sums(run);
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    for (std::size_t step = 0; step < run.ranks[rank].steps.size(); ++step) {
      if (run.ranks[rank].steps[step].has_account) sums.add(rank, step);
    }
  }
  return sums.take();
}

}  // namespace barestep
