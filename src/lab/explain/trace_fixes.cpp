// What a step would gain without a cause: the stretches of its account, replayed.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <unordered_map>

#include "core/statistics.h"
#include "lab/explain/explain_report.h"

namespace barestep {
namespace {

constexpr std::size_t kMostNames = 6, kMostCauses = kMostNames + 3 + 2 * kValuesOf<Part>.size();

using FixKind = TracedFix::Kind;

/// What is taken out of the steps.
struct RemovableCause {
  FixKind kind = FixKind::kName;
  Part part = Part::kHost;
  std::string name{};
  std::size_t rank = 0;  // that is late
  double share = 0;      // of its time in the part
};

/// By cause, in nanoseconds.
using CauseTimes = std::array<std::int64_t, kMostCauses>;

/// A stretch of a rank's step that would be shorter without a cause, or without another rank's.
struct FixableStretch {
  std::size_t rank = 0;
  HostStretch times{};
  const TracedExchange* exchange = nullptr;  // that held it, if all ranks' entries are known
  bool is_late_host = false;
  CauseTimes seen_ns{}, unseen_ns{};  // of its time; beside work
};

/// The names that cover most of the host's time, if each covers a hundredth of a step or more.
std::vector<RemovableCause> named_causes(const TracedRun& run, const RunAccount& account,
                                         std::int64_t least_ns) {
  std::map<std::pair<Part, std::string>, std::int64_t> sums;
  for (const TracedAccount& step : account.accounts) {
    const TracedRank& rank = run.ranks[step.rank];
    for (const auto& [time, ns] : step.named_ns) {
      const bool is_idle = time.part == Part::kIdle && !rank.on_host;  // the host waits, too
      const std::string name = innermost_name(rank, time);
      if (rank.names.path(time.path).empty() || is_idle || names_phase(name)) continue;
      sums[{time.part, name}] += ns;
    }
  }
  std::vector<std::pair<std::int64_t, RemovableCause>> longest;
  for (const auto& [key, ns] : sums) {
    const auto& [part, name] = key;
    const bool is_known = std::ranges::find(longest, name, [](const auto& cause) {
                            return cause.second.name;
                          }) != longest.end();
    if (ns >= least_ns && !is_known) longest.push_back({ns, {.part = part, .name = name}});
  }
  std::ranges::stable_sort(longest, std::greater(), [](const auto& cause) { return cause.first; });
  std::vector<RemovableCause> causes;
  for (auto& [ns, cause] : longest) {
    if (causes.size() < kMostNames) causes.push_back(std::move(cause));
  }
  return causes;
}

/// The name that the sentence about a part has.
std::string leading_name(const TracedRun& run, const RunAccount& account, Part part) {
  return cause_in(run, account, rank_with_most(account, part), part).name;
}

std::vector<RemovableCause> causes_of(const TracedRun& run, const RunAccount& account) {
  using enum TracedFix::Kind;
  const RankSum all = rank_sum(account);
  const std::int64_t least_ns = std::max<std::int64_t>(1, all.wall_ns / 100);
  std::vector<RemovableCause> causes = named_causes(run, account, least_ns);
  for (const Part part : kValuesOf<Part>) {
    const bool has_cause =
        part == Part::kOtherStages || (part == Part::kExposedCommunication && !account.lacks_ranks);
    if (all.part_ns[part] < least_ns || traits_of(part).computes || has_cause) continue;
    const std::string name = leading_name(run, account, part);
    const bool is_new = !name.empty() && part != Part::kIdle &&
                        std::ranges::find(causes, name, &RemovableCause::name) == causes.end();
    if (is_new) causes.push_back({kName, part, name});
    causes.push_back({kPart, part, std::string(traits_of(part).words)});
  }
  if (const std::optional<LateRank> late = late_rank_of(account)) {
    const RankSum own = rank_sum(account, late->rank);
    causes.push_back({kLateRank, late->longer,
                      fmt::format("rank {} slower than the others", run.ranks[late->rank].rank),
                      late->rank, late->excess_s / own.step_s(own.part_ns[late->longer])});
  } else if (all.waiting_ns >= least_ns) {
    causes.push_back({kTurns, Part::kExposedCommunication, "ranks that wait in turns"});
  }
  if (all.part_ns[Part::kOtherStages] >= least_ns) {
    causes.push_back({kBubble, Part::kOtherStages, "the bubble of the pipeline"});
  }
  if (all.moving_ns() >= least_ns && !account.lacks_ranks) {
    causes.push_back({kExchanges, Part::kExposedCommunication, std::string(kExchanging)});
  }
  return causes;
}

/// Repeats the steps without each cause, one step after the other.
class Replay {
 public:
  Replay(const TracedRun& run, const RunAccount& account, std::vector<RemovableCause> causes)
      : run_(run), causes_(std::move(causes)) {
    for (std::size_t i = 0; i < 2 * causes_.size(); ++i) {
      replayed_.push_back({.gained = std::vector<std::vector<Gained>>(run.ranks.size()),
                           .unseen_ns = std::vector<std::int64_t>(run.ranks.size(), 0),
                           .rank_s = std::vector<double>(run.ranks.size(), 0)});
    }
    for (auto first = account.accounts.begin(); first != account.accounts.end();) {
      const auto end = std::find_if(first, account.accounts.end(), [&](const TracedAccount& step) {
        return step.number != first->number;
      });
      stretches_.clear();
      std::for_each(first, end, [&](const TracedAccount& step) { add(step); });
      std::ranges::stable_sort(stretches_, {}, [](const FixableStretch& stretch) {
        return std::pair(stretch.times.end_ns, stretch.times.begin_ns);
      });
      for (std::size_t i = 0; i < replayed_.size(); ++i) {
        replay(replayed_[i], i / 2, i % 2 == 1, std::span(first, end));
      }
      first = end;
    }
  }

  /// By step, the seconds that it gains in the mean of its ranks; of a bubble, what all gain.
  /// `at_most`: also what the cause delayed unseen, beside work of the device, and on the CPU the
  /// work that it did itself.
  [[nodiscard]] const std::vector<double>& gains(std::size_t cause, bool at_most) const {
    return replayed_[2 * cause + (at_most ? 1 : 0)].gains_s;
  }
  /// By rank, over all steps.
  [[nodiscard]] const std::vector<double>& rank_gains(std::size_t cause) const {
    return replayed_[2 * cause].rank_s;
  }

 private:
  /// How much earlier a rank is from a moment on.
  struct Gained {
    std::int64_t from_ns = 0, ns = 0;
  };

  struct Replayed {
    std::vector<std::vector<Gained>> gained{};  // by rank, ascending
    std::vector<std::int64_t> unseen_ns{};      // by rank
    std::vector<double> rank_s{};               // by rank, over all steps
    std::vector<double> gains_s{};              // by step
  };

  void replay(Replayed& of, std::size_t number, bool at_most,
              std::span<const TracedAccount> accounts) const {
    for (std::vector<Gained>& gained : of.gained) {  // of earlier steps, only the last counts
      const std::int64_t ns = gained.empty() ? 0 : gained.back().ns;
      gained = {{std::numeric_limits<std::int64_t>::min(), ns}};
    }
    for (const FixableStretch& stretch : stretches_) {
      std::vector<Gained>& gained = of.gained[stretch.rank];
      const std::int64_t before_ns = gained.back().ns;
      std::int64_t lost_ns = stretch.seen_ns.at(number);
      if (at_most) lost_ns += unseen_ns(stretch, number, of.unseen_ns[stretch.rank]);
      std::int64_t after_ns = before_ns + lost_ns;
      if (lost_ns == 0 && stretch.exchange != nullptr) {
        after_ns = after_exchange(stretch, of.gained, number);
      }
      if (after_ns != before_ns) gained.push_back({stretch.times.end_ns, after_ns});
    }
    double sum_s = 0, least_s = std::numeric_limits<double>::infinity();
    for (const TracedAccount& step : accounts) {
      const std::vector<Gained>& gained = of.gained[step.rank];
      const double gain_s = ns_seconds(gained.back().ns - gained.front().ns);
      of.rank_s[step.rank] += gain_s;
      sum_s += gain_s;
      least_s = std::min(least_s, gain_s);
    }
    const bool is_of_all = causes_[number].kind == FixKind::kBubble;
    of.gains_s.push_back(is_of_all ? least_s : sum_s / static_cast<double>(accounts.size()));
  }

  /// What a stretch loses of what the cause did beside work: on the CPU at once, on a device where
  /// its host is late afterwards.
  [[nodiscard]] std::int64_t unseen_ns(const FixableStretch& stretch, std::size_t number,
                                       std::int64_t& kept_ns) const {
    const std::int64_t ns = stretch.unseen_ns.at(number);
    if (run_.ranks[stretch.rank].on_host) return stretch.exchange == nullptr ? ns : 0;
    kept_ns += ns;
    if (!stretch.is_late_host) return 0;
    const std::int64_t lost_ns = std::min(kept_ns, stretch.times.ns() - stretch.seen_ns.at(number));
    kept_ns -= lost_ns;
    return lost_ns;
  }

  static std::int64_t gained_at(const std::vector<Gained>& gained, std::int64_t at_ns) {
    return std::prev(std::ranges::upper_bound(gained, at_ns, {}, &Gained::from_ns))->ns;
  }

  /// It ends as long after the last rank's entry as it did, without transfers at once, but not
  /// before it begins.
  [[nodiscard]] std::int64_t after_exchange(const FixableStretch& stretch,
                                            const std::vector<std::vector<Gained>>& gained,
                                            std::size_t number) const {
    std::int64_t last_ns = std::numeric_limits<std::int64_t>::min();
    for (const std::size_t i : stretch.exchange->works) {
      const TracedWork& work = run_.works[i];
      last_ns = std::max(last_ns, work.begin_ns - gained_at(gained[work.rank], work.begin_ns));
    }
    std::int64_t moved_ns = stretch.times.end_ns - *stretch.exchange->last_begin_ns;
    if (causes_[number].kind == FixKind::kExchanges) {
      moved_ns = std::min<std::int64_t>(moved_ns, 0);
    }
    const std::int64_t begin_ns = stretch.times.begin_ns - gained[stretch.rank].back().ns;
    return stretch.times.end_ns - std::max(begin_ns, last_ns + moved_ns);
  }

  void add(const TracedAccount& account) {
    const TracedRank& rank = run_.ranks[account.rank];
    std::unordered_map<std::size_t, std::vector<std::size_t>> named;  // causes, by path
    visit_stretches(run_, account.rank, account.step, [&](const CauseSpan& stretch) {
      FixableStretch found{.rank = account.rank,
                           .times = times_of(rank.steps[account.step], stretch)};
      found.is_late_host =
          has_names(stretch) && (stretch.part == Part::kHost || stretch.part == Part::kOptimizer);
      CauseTimes& named_ns = has_names(stretch) ? found.seen_ns : found.unseen_ns;
      rank.names.visit(found.times, [&](std::size_t path, const HostStretch& piece) {
        const auto [at, is_new] = named.try_emplace(path);
        if (is_new) at->second = causes_named(rank, path);
        for (const std::size_t i : at->second) named_ns.at(i) += piece.ns();
      });
      if (stretch.held_by && is_exchange(stretch.part)) {
        const TracedExchange* const exchange = run_.exchange_of(stretch.held_by->run);
        if (exchange != nullptr && exchange->last_begin_ns) found.exchange = exchange;
      }
      add_part(stretch, found);
      const bool is_fixed = found.seen_ns != CauseTimes{} || found.unseen_ns != CauseTimes{};
      if (is_fixed || found.is_late_host || found.exchange != nullptr) stretches_.push_back(found);
    });
  }

  [[nodiscard]] std::vector<std::size_t> causes_named(const TracedRank& rank,
                                                      std::size_t path) const {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < causes_.size(); ++i) {
      const bool has = std::ranges::any_of(rank.names.path(path), [&](std::size_t name) {
        return rank.names.name(name) == causes_[i].name;
      });
      if (has && causes_[i].kind == FixKind::kName) all.push_back(i);
    }
    return all;
  }

  /// What a stretch loses by its part.
  void add_part(const CauseSpan& stretch, FixableStretch& found) const {
    using enum TracedFix::Kind;
    for (std::size_t i = 0; i < causes_.size(); ++i) {
      const RemovableCause& cause = causes_[i];
      if (cause.kind == kName || cause.part != stretch.part) continue;
      if (cause.kind == kLateRank && cause.rank == found.rank) {
        found.seen_ns.at(i) = std::llround(cause.share * static_cast<double>(found.times.ns()));
      }
      if (cause.kind == kTurns && found.exchange != nullptr) {
        found.seen_ns.at(i) =
            moving_from(run_, stretch.held_by->run, found.times) - found.times.begin_ns;
      }
      const bool is_whole = cause.kind == kPart || cause.kind == kBubble ||
                            (cause.kind == kExchanges && found.exchange == nullptr);
      if (is_whole) found.seen_ns.at(i) = found.times.ns();
    }
  }

  const TracedRun& run_;
  std::vector<RemovableCause> causes_;
  std::vector<FixableStretch> stretches_;  // of a step, by end
  std::vector<Replayed> replayed_;         // two of each cause
};

double gain(const TracedFix& fix) {
  return fix.gain_s.median;
}

/// Leaves out the parts of which another cause is half, and puts the first cause in its place.
void rank_first(const TracedRun& run, const RunAccount& account, std::vector<TracedFix>& fixes) {
  std::erase_if(fixes, [&, all = fixes](const TracedFix& fix) {
    return fix.kind == FixKind::kPart && std::ranges::any_of(all, [&](const TracedFix& other) {
             return other.kind != FixKind::kPart && other.part == fix.part &&
                    2 * gain(other) >= gain(fix);
           });
  });
  const auto put_first = [&](auto found) {
    if (found != fixes.end()) std::rotate(fixes.begin(), found, std::next(found));
  };
  if (fixes.empty()) return;
  if (fixes.front().kind == FixKind::kName) {
    put_first(
        std::ranges::find(fixes, leading_name(run, account, fixes.front().part), &TracedFix::name));
  }
  put_first(std::ranges::find_if(fixes, [&](const TracedFix& fix) {
    return fix.kind == FixKind::kLateRank && 2 * gain(fix) >= gain(fixes.front());
  }));
}

}  // namespace

std::vector<TracedFix> fixes_of(const TracedRun& run, const RunAccount& account) {
  const std::vector<RemovableCause> causes = causes_of(run, account);
  if (causes.empty()) return {};
  const Replay replay(run, account, causes);
  const RankSum all = rank_sum(account);
  const double wall_s = all.step_s(all.wall_ns);
  std::vector<TracedFix> fixes;
  for (std::size_t i = 0; i < causes.size(); ++i) {
    const std::vector<double>& seen_s = replay.gains(i, false);
    const Statistics seen = statistics_of(seen_s), most = statistics_of(replay.gains(i, true));
    const double errors = 2 / std::sqrt(static_cast<double>(seen_s.size()));
    fixes.push_back({causes[i].kind,
                     causes[i].part,
                     causes[i].name,
                     {seen.mean, std::max(0.0, seen.mean - errors * seen.stddev),
                      std::min(wall_s, most.mean + errors * most.stddev)}});
  }
  std::ranges::stable_sort(fixes, std::greater(), gain);
  rank_first(run, account, fixes);
  return fixes;
}

std::vector<double> ideal_network_gains(const TracedRun& run, const RunAccount& account) {
  return Replay(run, account, {{FixKind::kExchanges, Part::kExposedCommunication, ""}})
      .rank_gains(0);
}

}  // namespace barestep
