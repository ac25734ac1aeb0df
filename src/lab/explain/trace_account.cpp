#include "lab/explain/trace_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "core/statistics.h"
#include "core/units.h"

namespace barestep {
namespace {

constexpr std::int64_t kStallNs = 1'000'000;  // the shortest
/// After all times of a trace; half of the range, so that differences stay in it.
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max() / 2;

/// The stretch of a list that contains a moment, and otherwise when the next one begins.
struct HostState {
  const HostStretch* in = nullptr;
  std::int64_t until_ns = kNever;
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

/// A step of a rank. Its work is that of the run, by number.
class TraceSpans final : public Spans {
 public:
  TraceSpans(const TracedRun& run, std::size_t rank, std::size_t step)
      : run_(run), rank_(run.ranks[rank]), index_(rank), step_(rank_.steps[step]) {
    for (const std::size_t i : rank_.works_of_step[step]) {
      const TracedWork& of = run_.works[i];
      // Work that outlives the step did not hold its end.
      const bool outlives = of.node < 0 && of.end_ns > step_.wall_end_ns;
      if (!outlives) works_.push_back(i);
    }
  }

  [[nodiscard]] WallTime wall() const override {
    return {seconds(step_.wall_begin_ns), seconds(step_.wall_end_ns)};
  }
  [[nodiscard]] WallTime fetch() const override {
    return {seconds(step_.fetch_begin_ns), seconds(step_.fetched_ns)};
  }
  [[nodiscard]] std::size_t size() const override { return works_.size(); }
  [[nodiscard]] RunOfStep work_at(std::size_t number) const override { return {works_[number]}; }

  [[nodiscard]] Work work(RunOfStep which) const override {
    const TracedWork& of = run_.works[which.run];
    // An op of the host is never queued; what has no launch is.
    const bool is_op = rank_.on_host && (!of.is_collective() || of.lane == rank_.main);
    return {.queued_s = is_op          ? seconds(of.begin_ns)
                        : of.queued_ns ? seconds(*of.queued_ns)
                                       : 0,
            .begin_s = seconds(of.begin_ns),
            .end_s = seconds(of.end_ns),
            .part = part_of(of),
            .is_own = of.rank == index_ && of.lane == rank_.main,
            .is_input = of.is_input};
  }

  /// Those of other devices of this process.
  void add_parts(RunOfStep of, Last& last) const override {
    const TracedExchange* const exchange = run_.exchange_of(of.run);
    if (exchange == nullptr || run_.works[of.run].node < 0) return;
    for (const std::size_t other : exchange->works) {
      const TracedWork& part = run_.works[other];
      if (run_.ranks[part.rank].file.process != rank_.file.process) continue;
      last.add({other}, seconds(part.begin_ns));
    }
  }

  void add_awaited(RunOfStep held, Last& last) const override {
    const TracedWork& of = run_.works[held.run];
    const double now_s = last.after_s;
    const std::int64_t noticed_ns = noticed_by(of);
    // Times of others are rounded, and kernels may begin before the one ahead of them ends: only
    // what ends before the work begins can have held it.
    const auto add = [&](std::size_t number) {
      const TracedWork& other = run_.works[number];
      const std::int64_t limit_ns = other.is_collective() ? noticed_ns : of.begin_ns;
      const bool holds = of.node >= 0 || (other.end_ns <= limit_ns && other.begin_ns < of.begin_ns);
      if (holds) last.add({number}, seconds(other.end_ns));
    };
    for (const std::size_t other : of.awaited) add(other);
    if (of.previous) add(*of.previous);
    const bool is_late = of.queued_ns && seconds(*of.queued_ns) > now_s;
    if (of.node >= 0 || last.work || rank_.has_stream_waits || is_late) return;
    const auto add_last = [&](const std::vector<std::size_t>& by_end, std::int64_t limit_ns,
                              std::int64_t TracedWork::*end_ns, double after_s) {
      const auto end = [&](std::size_t i) { return run_.works[i].*end_ns; };
      auto earlier = std::ranges::upper_bound(by_end, limit_ns, {}, end);
      while (earlier != by_end.begin() && seconds(end(*--earlier)) > after_s) {
        const TracedWork& other = run_.works[*earlier];
        if (other.lane == of.lane || other.begin_ns >= of.begin_ns) continue;
        return last.add({*earlier}, seconds(end(*earlier)));
      }
    };
    const TracedMoments& moments = rank_.moments;
    add_last(moments.by_end, of.begin_ns, &TracedWork::end_ns, now_s);
    add_last(moments.exchanges_by_end, noticed_ns, &TracedWork::end_ns, now_s);
    if (last.work) return;
    // On a busy machine a collective's record may end any time later, but hardly that of each rank.
    const std::int64_t early_ns = 2 * of.begin_ns - noticed_ns;
    add_last(moments.exchanges_by_first_end, noticed_ns, &TracedWork::first_end_ns,
             std::max(now_s, seconds(early_ns)));
  }

  [[nodiscard]] CauseSpan host_at(double now_s, double until_s) const override {
    const std::int64_t now_ns = step_.wall_begin_ns + std::llround(1e9 * now_s);
    const HostState loading = state_at(rank_.loading, now_ns);
    const HostState blocked =
        rank_.on_host || loading.in != nullptr ? HostState{} : state_at(rank_.blocked, now_ns);
    const HostState updating = state_at(rank_.updating, now_ns);
    until_s = std::min({until_s, seconds(loading.until_ns), seconds(blocked.until_ns),
                        seconds(updating.until_ns)});
    if (loading.in != nullptr) return {now_s, until_s, Part::kDataWait};
    if (updating.in != nullptr && blocked.in == nullptr) return {now_s, until_s, Part::kOptimizer};
    if (!rank_.on_host && blocked.in == nullptr) return {now_s, until_s, Part::kHost};
    // The host waits for the device; without one, its thread that trains may wait for autograd's.
    const TracedMoments& moments = rank_.moments;
    const auto& all = rank_.on_host ? moments.backward : moments.running;
    const auto later = std::ranges::upper_bound(all, now_ns, {}, &RunningWork::from_ns);
    if (later != all.begin() && std::prev(later)->work) {
      const std::size_t number = *std::prev(later)->work;
      const TracedWork& running = run_.works[number];
      return {now_s, std::min(until_s, seconds(running.end_ns)), part_of(running), false,
              RunOfStep{number}};
    }
    const auto next = std::ranges::upper_bound(moments.begins_ns, now_ns);
    const std::int64_t next_ns = next == moments.begins_ns.end() ? kNever : *next;
    return {now_s, std::min(until_s, seconds(next_ns)), Part::kHost};
  }

  /// The host's work after the device's; barestep's host only notices the end.
  [[nodiscard]] CauseSpan end_at(double now_s, double until_s) const override {
    return rank_.file.is_ours ? Spans::end_at(now_s, until_s) : host_at(now_s, until_s);
  }

 private:
  [[nodiscard]] double seconds(std::int64_t ns) const {
    return 1e-9 * static_cast<double>(ns - step_.wall_begin_ns);
  }

  /// As seen from the rank's main lane.
  [[nodiscard]] Part part_of(const TracedWork& work) const {
    const bool is_elsewhere =
        work.rank != index_ ||
        (!rank_.on_host && rank_.process_of(work.lane) != rank_.process_of(rank_.main));
    return is_elsewhere && traits_of(work.part).computes ? Part::kOtherDevice : work.part;
  }

  /// Until when a collective may end that held this work.
  [[nodiscard]] std::int64_t noticed_by(const TracedWork& of) const {
    if (!rank_.on_host || of.is_collective() || !of.previous) return of.begin_ns;
    const std::int64_t free_ns = std::min(of.begin_ns, run_.works[*of.previous].end_ns);
    return noticed_until({free_ns, of.begin_ns});
  }

  const TracedRun& run_;
  const TracedRank& rank_;
  std::size_t index_;
  const RankStep& step_;
  std::vector<std::size_t> works_;
};

/// When a rank communicated.
std::vector<HostStretch> communication_of(const TracedRun& run, std::size_t rank) {
  std::vector<HostStretch> all;
  for (const TracedWork& work : run.works) {
    const bool counts = work.rank == rank && work.step && work.part == Part::kExposedCommunication;
    if (counts) all.push_back({work.begin_ns, work.end_ns});
  }
  return united(std::move(all));
}

std::int64_t common_ns(const std::vector<HostStretch>& intervals, const HostStretch& with) {
  std::int64_t ns = 0;
  auto interval = std::ranges::upper_bound(intervals, with.begin_ns, {}, &HostStretch::end_ns);
  for (; interval != intervals.end() && interval->begin_ns < with.end_ns; ++interval) {
    ns += std::max<std::int64_t>(
        0, std::min(interval->end_ns, with.end_ns) - std::max(interval->begin_ns, with.begin_ns));
  }
  return ns;
}

/// Collects the account of a run's steps with these numbers.
class RunSums {
 public:
  RunSums(const TracedRun& run, const std::set<std::int64_t>& numbers)
      : run_(run), numbers_(numbers) {
    const std::size_t ranks = run.ranks.size();
    sums_.waited_ns.assign(ranks, std::vector<std::int64_t>(ranks, 0));
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      communication_.push_back(communication_of(run, rank));
    }
    add_buckets();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::vector<RankStep>& steps = run.ranks[rank].steps;
      for (std::size_t step = 0; step < steps.size(); ++step) {
        if (steps[step].has_account && numbers.contains(steps[step].number)) add(rank, step);
      }
    }
    std::ranges::stable_sort(sums_.accounts, {}, &TracedAccount::number);
  }

  [[nodiscard]] RunAccount take() {
    std::erase_if(sums_.buckets, [](const BucketAccount& bucket) { return bucket.count == 0; });
    return std::move(sums_);
  }

 private:
  void add(std::size_t rank, std::size_t step) {
    const RankStep& of = run_.ranks[rank].steps[step];
    TracedAccount account{.rank = rank,
                          .step = step,
                          .number = of.number,
                          .wall_ns = of.wall_end_ns - of.wall_begin_ns};
    account.hidden_ns = common_ns(communication_[rank], {of.wall_begin_ns, of.wall_end_ns});
    std::map<NamedTime, std::int64_t> unsettled;  // what follows it is not known yet
    const auto settle = [&](std::optional<Part> before) {
      for (const auto& [time, ns] : std::exchange(unsettled, {})) {
        account.named_ns[{time.part, time.path, before}] += ns;
      }
    };
    visit_stretches(run_, rank, step, [&](const CauseSpan& stretch) {
      const HostStretch times = times_of(of, stretch);
      account.part_ns[stretch.part] += times.ns();
      if (stretch.is_own_work) settle(stretch.part);
      if (has_names(stretch)) {
        run_.ranks[rank].names.visit(times, [&](std::size_t path, const HostStretch& piece) {
          unsettled[{stretch.part, path}] += piece.ns();
        });
      }
      if (!is_exchange(stretch.part)) return;
      account.hidden_ns -= common_ns(communication_[rank], times);
      if (stretch.held_by) add_exposed(rank, stretch.held_by->run, times, account);
    });
    settle(std::nullopt);
    account.hidden_ns = std::max<std::int64_t>(0, account.hidden_ns);
    sums_.accounts.push_back(account);
  }

  void add_exposed(std::size_t rank, std::size_t held_by, const HostStretch& stretch,
                   TracedAccount& account) {
    const TracedWork& work = run_.works[held_by];
    if (!work.exchange) return;
    const TracedExchange& exchange = run_.exchanges[*work.exchange];
    const std::int64_t waiting_ns =
        exchange.last_begin_ns ? moving_from(run_, held_by, stretch) - stretch.begin_ns : 0;
    const std::size_t row = bucket_of_[*work.exchange];
    if (numbers_.contains(exchange.step)) {
      sums_.buckets[row].exposed_ns += stretch.ns();
      sums_.buckets[row].waiting_ns += waiting_ns;
    }
    if (!exchange.last_begin_ns) return;
    if (work.part == Part::kExposedCommunication) {
      account.waiting_ns += waiting_ns;
      const TracedWork& own = work.posted ? run_.works[*work.posted] : work;
      const std::int64_t due_ns = free_ns(own) + usual_ns_[row];
      const std::int64_t ns = stretch.end_ns - std::max(stretch.begin_ns, due_ns);
      const bool stalls = ns > 0 && own.end_ns - due_ns >= std::max(kStallNs, 3 * usual_ns_[row]);
      if (stalls) {
        account.stalled_ns += ns;
        account.longest_stall = std::max(account.longest_stall, {ns, sums_.buckets[row].text()});
      }
    }
    sums_.waited_ns[rank][*exchange.last_rank] += waiting_ns;
  }

  /// A bucket of every step is one row: the n-th of its name and bytes in a step.
  void add_buckets() {
    std::map<std::tuple<std::string, std::int64_t, std::int64_t>, std::size_t> rows;
    std::map<std::tuple<std::int64_t, std::string, std::int64_t>, std::int64_t> counts;
    std::vector<std::vector<std::int64_t>> times_ns;  // by row, of all steps and ranks
    for (const TracedExchange& exchange : run_.exchanges) {
      const TracedCollective& what = run_.collective_of(run_.works[exchange.works.back()]);
      const std::string name = what.is_message() ? "message" : what.name;
      const std::int64_t n = counts[{exchange.step, name, what.bytes}]++;
      const auto [at, is_new] = rows.try_emplace({name, what.bytes, n}, sums_.buckets.size());
      if (is_new) {
        sums_.buckets.push_back({.name = name, .bytes = what.bytes, .ranks = what.ranks});
        times_ns.emplace_back();
      }
      bucket_of_.push_back(at->second);
      for (const std::size_t i : exchange.works) {
        const TracedWork& work = run_.works[i];
        times_ns[at->second].push_back(work.end_ns - free_ns(work));
      }
      if (numbers_.contains(exchange.step)) add_times(exchange, sums_.buckets[at->second]);
    }
    for (std::vector<std::int64_t>& times : times_ns) {
      const auto half = times.begin() + (std::ssize(times) - 1) / 2;
      std::ranges::nth_element(times, half);
      // But no longer than it takes to pass twice a link of 1 Gbit/s.
      const std::int64_t bytes = sums_.buckets[usual_ns_.size()].bytes;
      usual_ns_.push_back(bytes == 0 ? *half : std::min(*half, kStallNs + 16 * bytes));
    }
  }

  /// When a rank's part in a collective could begin: all have entered, and it has done the one
  /// before.
  [[nodiscard]] std::int64_t free_ns(const TracedWork& work) const {
    const std::vector<std::size_t>& by_end = run_.ranks[work.rank].moments.exchanges_by_end;
    const auto end = [&](std::size_t i) { return run_.works[i].end_ns; };
    const auto later = std::ranges::lower_bound(by_end, work.end_ns, {}, end);
    const std::int64_t from_ns = run_.exchanges[*work.exchange].last_begin_ns.value_or(0);
    return later == by_end.begin() ? from_ns : std::max(from_ns, end(*std::prev(later)));
  }

  void add_times(const TracedExchange& exchange, BucketAccount& bucket) {
    ++bucket.count;
    std::optional<std::int64_t> moving_ns;
    for (const std::size_t i : exchange.works) {
      const TracedWork& work = run_.works[i];
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
  const std::set<std::int64_t>& numbers_;
  RunAccount sums_;
  std::vector<std::vector<HostStretch>> communication_;  // by rank
  std::vector<std::size_t> bucket_of_;                   // by exchange
  std::vector<std::int64_t> usual_ns_;                   // by bucket
};

/// Tells the work of devices that was launched before the last step's end. What has no launch, on a
/// stream where others have one, was launched before the profile if it precedes them.
class LaunchedInSteps {
 public:
  explicit LaunchedInSteps(const TracedRank& rank)
      : end_ns_(rank.steps.back().end_ns - rank.shift_ns) {
    for (const TraceEvent& event : rank.file.events) {
      if (event.kind != TraceEvent::Kind::kCall || event.correlation == 0) continue;
      calls_.insert(event.correlation);
      if (event.begin_ns <= end_ns_) in_steps_.insert(event.correlation);
    }
    for (const TraceEvent& event : rank.file.events) {
      if (event.is_work() && calls_.contains(event.correlation)) {
        first_ns_.try_emplace(event.row, event.begin_ns);
      }
    }
  }
  [[nodiscard]] bool contains(const TraceEvent& event) const {
    if (in_steps_.empty()) return true;
    if (calls_.contains(event.correlation)) return in_steps_.contains(event.correlation);
    const auto first = first_ns_.find(event.row);
    return event.begin_ns <= end_ns_ &&
           (first == first_ns_.end() || event.begin_ns > first->second);
  }

 private:
  std::int64_t end_ns_;
  std::set<std::int64_t> calls_, in_steps_;
  std::map<TraceIndex, std::int64_t> first_ns_;  // of work with a launch
};

}  // namespace

void visit_stretches(const TracedRun& run, std::size_t rank, std::size_t step,
                     const std::function<void(const CauseSpan&)>& visit) {
  visit_stretches(TraceSpans(run, rank, step), visit);
}

std::string BucketAccount::text() const {
  return bytes == 0 ? name : name + " of " + human_bytes(bytes);
}

double BucketAccount::bus_bytes_per_s() const {
  if (ranks < 2 || bytes == 0 || moving_ns == 0 || name == "message") return 0;
  const double n = ranks;
  const double factor = name == "all_reduce" ? 2 * (n - 1) / n
                        : name == "all_gather" || name == "reduce_scatter" || name == "all_to_all"
                            ? (n - 1) / n
                            : 1;
  return factor * static_cast<double>(bytes) * static_cast<double>(count) / ns_seconds(moving_ns);
}

std::int64_t moving_from(const TracedRun& run, std::size_t held_by, const HostStretch& stretch) {
  const TracedExchange* const exchange = run.exchange_of(held_by);
  if (exchange == nullptr) return stretch.begin_ns;
  return std::clamp(exchange->last_begin_ns.value_or(stretch.begin_ns), stretch.begin_ns,
                    stretch.end_ns);
}

std::vector<DeviceBreakdown> breakdowns_of(const TracedRun& run) {
  std::vector<DeviceBreakdown> breakdowns;
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const TracedRank& of = run.ranks[rank];
    const std::int64_t origin_ns = of.file.events.front().begin_ns;
    const LaunchedInSteps launched(of);
    std::map<std::string, std::vector<DeviceWork>> devices;
    for (const TraceEvent& event : of.file.events) {
      if (!event.is_work() || !launched.contains(event)) continue;
      const bool is_copy = event.kind != TraceEvent::Kind::kKernel;
      devices[of.file.rows[event.row].process].push_back(
          {.kind = is_copy                 ? DeviceWork::Kind::kCopy
                   : event.collective >= 0 ? DeviceWork::Kind::kCommunication
                                           : DeviceWork::Kind::kCompute,
           .begin_s = ns_seconds(event.begin_ns - origin_ns),
           .end_s = ns_seconds(event.end_ns - origin_ns)});
    }
    for (const auto& [device, works] : devices) {
      breakdowns.push_back({rank, device, breakdown_of(works)});
    }
  }
  return breakdowns;
}

std::string ahead_text(const NamedTime& time) {
  return time.before ? fmt::format("before {}", subject_of(*time.before))
                     : "after the last op of the step";
}

std::string innermost_name(const TracedRank& rank, const NamedTime& time) {
  const std::vector<std::size_t>& path = rank.names.path(time.path);
  return path.empty() ? ahead_text(time) : rank.names.name(path.back());
}

std::vector<TracedAccount> RunAccount::all() const {
  std::vector<TracedAccount> both = accounts;
  both.insert(both.end(), outliers.begin(), outliers.end());
  std::ranges::stable_sort(both, {}, &TracedAccount::number);
  return both;
}

RunAccount account_of(const TracedRun& run) {
  std::map<std::int64_t, std::int64_t> walls_ns;  // by number, the longest of all ranks
  for (const TracedRank& rank : run.ranks) {
    for (const RankStep& step : rank.steps) {
      if (!step.has_account) continue;
      std::int64_t& wall_ns = walls_ns[step.number];
      wall_ns = std::max(wall_ns, step.wall_end_ns - step.wall_begin_ns);
    }
  }
  std::vector<std::int64_t> walls;
  for (const auto& [number, ns] : walls_ns) walls.push_back(ns);
  std::ranges::sort(walls);
  std::int64_t limit_ns = kNever;
  const auto leave_out = [&](std::size_t count, std::int64_t times) {
    const auto first = walls.end() - static_cast<std::ptrdiff_t>(count);
    if (*first >= times * *std::prev(first)) limit_ns = *first;
  };
  for (std::size_t count = 1; 5 * count <= walls.size(); ++count) leave_out(count, 2);
  if (walls.size() == 3 || walls.size() == 4) leave_out(1, 4);
  std::set<std::int64_t> usual, longer;
  for (const auto& [number, ns] : walls_ns) (ns >= limit_ns ? longer : usual).insert(number);
  RunAccount account = RunSums(run, usual).take();
  if (!longer.empty()) account.outliers = RunSums(run, longer).take().accounts;
  account.lacks_ranks = std::ranges::any_of(run.exchanges, [&](const TracedExchange& exchange) {
    return !exchange.last_begin_ns && std::ranges::any_of(exchange.works, [&](std::size_t work) {
      return run.works[work].part == Part::kExposedCommunication;
    });
  });
  return account;
}

}  // namespace barestep
