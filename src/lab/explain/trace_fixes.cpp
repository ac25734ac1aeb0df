// What a step would gain without a cause: the stretches of its account, replayed.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <unordered_map>

#include "core/statistics.h"
#include "lab/explain/trace_account.h"

namespace barestep {
namespace {

constexpr std::size_t kMostFixes = 6;

/// What each of some causes covered of a stretch, in nanoseconds.
using CoveredNs = std::array<std::int64_t, kMostFixes>;

/// A stretch of a rank's step that would be shorter without a cause, or without another rank's.
struct FixableStretch {
  std::size_t rank = 0;
  std::int64_t step = 0;
  HostStretch times{};
  const TracedExchange* exchange = nullptr;  // that held it, if all ranks' entries are known
  Part part = Part::kHost;
  bool has_names = false;
  CoveredNs covered_ns{};
};

/// The names that cover most of the host's time, if each covers a hundredth of a step or more.
std::vector<TracedFix> named_causes(const TracedRun& run, const RunAccount& account) {
  std::map<std::pair<Part, std::string>, std::int64_t> sums;
  std::int64_t wall_ns = 0;
  for (const TracedAccount& each : account.accounts) {
    wall_ns += each.wall_ns;
    const TracedRank& rank = run.ranks[each.rank];
    for (const auto& [time, ns] : each.named_ns) {
      if (rank.names.path(time.path).empty()) continue;
      sums[{time.part, innermost_name(rank, time)}] += ns;
    }
  }
  std::vector<std::pair<std::int64_t, TracedFix>> longest;
  for (const auto& [key, ns] : sums) {
    const auto& [part, name] = key;
    const bool is_known = std::ranges::find(longest, name, [](const auto& each) {
                            return each.second.name;
                          }) != longest.end();
    if (100 * ns >= wall_ns && !is_known) longest.push_back({ns, {part, name}});
  }
  std::ranges::stable_sort(longest, std::greater(), [](const auto& each) { return each.first; });
  std::vector<TracedFix> causes;
  for (auto& [ns, fix] : longest) {
    if (causes.size() < kMostFixes) causes.push_back(std::move(fix));
  }
  return causes;
}

/// Repeats the steps without each cause, one step after the other.
class Replay {
 public:
  Replay(const TracedRun& run, const RunAccount& account, const std::vector<TracedFix>& causes)
      : run_(run) {
    for (std::size_t i = 0; i < 2 * causes.size(); ++i) {
      replayed_.push_back({.gained = std::vector<std::vector<Gained>>(run.ranks.size()),
                           .unseen_ns = std::vector<std::int64_t>(run.ranks.size(), 0)});
    }
    for (auto first = account.accounts.begin(); first != account.accounts.end();) {
      const auto end = std::find_if(first, account.accounts.end(), [&](const TracedAccount& each) {
        return each.number != first->number;
      });
      stretches_.clear();
      std::for_each(first, end, [&](const TracedAccount& each) { add(each, causes); });
      std::ranges::stable_sort(stretches_, {}, [](const FixableStretch& each) {
        return std::pair(each.times.end_ns, each.times.begin_ns);
      });
      for (std::size_t i = 0; i < replayed_.size(); ++i) {
        replay(replayed_[i], i / 2, i % 2 == 1, static_cast<double>(end - first));
      }
      first = end;
    }
  }

  /// By step, the seconds that it gains in the mean of its ranks. `at_most`: also what the cause
  /// delayed unseen, beside work of the device, and on the CPU the work that it did itself.
  [[nodiscard]] const std::vector<double>& gains(std::size_t cause, bool at_most) const {
    return replayed_[2 * cause + (at_most ? 1 : 0)].gains_s;
  }

 private:
  /// How much earlier a rank is from a moment on.
  struct Gained {
    std::int64_t from_ns = 0, ns = 0;
  };

  struct Replayed {
    std::vector<std::vector<Gained>> gained{};  // by rank, ascending
    std::vector<std::int64_t> unseen_ns{};      // by rank
    std::vector<double> gains_s{};              // by step
  };

  void replay(Replayed& of, std::size_t cause, bool at_most, double ranks) const {
    for (std::vector<Gained>& each : of.gained) {  // of earlier steps, only the last counts
      const std::int64_t ns = each.empty() ? 0 : each.back().ns;
      each = {{std::numeric_limits<std::int64_t>::min(), ns}};
    }
    of.gains_s.push_back(0);
    for (const FixableStretch& each : stretches_) {
      std::vector<Gained>& gained = of.gained[each.rank];
      const std::int64_t before_ns = gained.back().ns;
      std::int64_t after_ns = before_ns;
      const std::int64_t covered_ns = each.covered_ns[cause];
      std::int64_t& unseen_ns = of.unseen_ns[each.rank];
      const bool on_host = run_.ranks[each.rank].on_host;
      if (each.has_names || (at_most && on_host && each.exchange == nullptr)) {
        const bool is_late = at_most && each.part == Part::kHost;
        const std::int64_t rest_ns =
            is_late ? std::min(unseen_ns, each.times.ns() - covered_ns) : 0;
        unseen_ns -= rest_ns;
        after_ns += covered_ns + rest_ns;
      } else {
        if (at_most && !on_host) unseen_ns += covered_ns;
        if (each.exchange != nullptr) after_ns = after_exchange(each, of.gained, before_ns);
      }
      of.gains_s.back() += ns_seconds(after_ns - before_ns) / ranks;
      if (after_ns != before_ns) gained.push_back({each.times.end_ns, after_ns});
    }
  }

  static std::int64_t gained_at(const std::vector<Gained>& gained, std::int64_t at_ns) {
    return std::prev(std::ranges::upper_bound(gained, at_ns, {}, &Gained::from_ns))->ns;
  }

  /// It ends as long after the last rank's entry as it did, but not before it begins.
  [[nodiscard]] std::int64_t after_exchange(const FixableStretch& each,
                                            const std::vector<std::vector<Gained>>& gained,
                                            std::int64_t before_ns) const {
    std::int64_t last_ns = std::numeric_limits<std::int64_t>::min();
    for (const std::optional<std::size_t>& i : each.exchange->works) {
      if (!i) continue;
      const TracedWork& work = run_.works[*i];
      last_ns = std::max(last_ns, work.begin_ns - gained_at(gained[work.rank], work.begin_ns));
    }
    const std::int64_t moved_ns = each.times.end_ns - *each.exchange->last_begin_ns;
    return each.times.end_ns - std::max(each.times.begin_ns - before_ns, last_ns + moved_ns);
  }

  void add(const TracedAccount& account, const std::vector<TracedFix>& causes) {
    const TracedRank& rank = run_.ranks[account.rank];
    const auto step = static_cast<std::size_t>(
        std::ranges::find(rank.steps, account.number, &RankStep::number) - rank.steps.begin());
    std::unordered_map<std::size_t, std::vector<std::size_t>> causes_of;  // of a path
    visit_stretches(run_, account.rank, step, [&](const CauseSpan& stretch) {
      FixableStretch found{.rank = account.rank,
                           .step = account.number,
                           .times = times_of(rank.steps[step], stretch),
                           .part = stretch.part,
                           .has_names = has_names(stretch)};
      bool is_covered = false;
      rank.names.visit(found.times, [&](std::size_t path, const HostStretch& piece) {
        const auto [at, is_new] = causes_of.try_emplace(path);
        for (std::size_t i = 0; is_new && i < causes.size(); ++i) {
          const bool has = std::ranges::any_of(rank.names.path(path), [&](std::size_t name) {
            return rank.names.name(name) == causes[i].name;
          });
          if (has) at->second.push_back(i);
        }
        for (const std::size_t i : at->second) found.covered_ns.at(i) += piece.ns();
        is_covered |= !at->second.empty();
      });
      if (stretch.held_by && is_exchange(stretch.part)) {
        const auto exchange = run_.exchange_of.find(stretch.held_by->run);
        const bool is_told =
            exchange != run_.exchange_of.end() && run_.exchanges[exchange->second].last_begin_ns;
        if (is_told) found.exchange = &run_.exchanges[exchange->second];
      }
      if (is_covered || found.has_names || found.exchange != nullptr) stretches_.push_back(found);
    });
  }

  const TracedRun& run_;
  std::vector<FixableStretch> stretches_;  // of a step, by end
  std::vector<Replayed> replayed_;         // two of each cause
};

}  // namespace

std::vector<TracedFix> fixes_of(const TracedRun& run, const RunAccount& account) {
  std::vector<TracedFix> fixes = named_causes(run, account);
  if (fixes.empty()) return fixes;
  const Replay replay(run, account, fixes);
  for (std::size_t i = 0; i < fixes.size(); ++i) {
    const std::vector<double>& seen_s = replay.gains(i, false);
    const Statistics seen = statistics_of(seen_s), most = statistics_of(replay.gains(i, true));
    const double errors = 2 / std::sqrt(static_cast<double>(seen_s.size()));
    fixes[i].gain_s = {seen.mean, std::max(0.0, seen.mean - errors * seen.stddev),
                       most.mean + errors * most.stddev};
  }
  std::ranges::stable_sort(fixes, std::greater(),
                           [](const TracedFix& each) { return each.gain_s.median; });
  return fixes;
}

}  // namespace barestep
