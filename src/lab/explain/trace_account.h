// The account of each step of each rank of a run, from its traces: every instant of the wall time
// has one cause, found by the walk of profiler/account.h.
//
// Where a trace does not tell what a stream waited for, the cause is what ended last before the
// stream went on: whatever was still running when the next work began did not hold it. A stretch
// in which the next work was not launched yet is the host's, unless the host itself waited for the
// device.
#pragma once

#include <cmath>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lab/explain/trace_steps.h"
#include "lab/report/samples.h"

namespace barestep {

/// Calls visit(stretch) for consecutive stretches of the wall time of a rank's step, from begin to
/// end, without gaps or overlaps, in seconds since it began. What they are held by is a piece of
/// the run's work.
void visit_stretches(const TracedRun& run, std::size_t rank, std::size_t step,
                     const std::function<void(const CauseSpan&)>& visit);

constexpr double ns_seconds(std::int64_t ns) {
  return 1e-9 * static_cast<double>(ns);
}

/// When a stretch of a step was.
inline HostStretch times_of(const RankStep& step, const CauseSpan& stretch) {
  return {step.wall_begin_ns + std::llround(1e9 * stretch.begin_s),
          step.wall_begin_ns + std::llround(1e9 * stretch.end_s)};
}

/// When the last rank had entered the collective that held a rank during this stretch; the begin if
/// that is unknown.
std::int64_t moving_from(const TracedRun& run, std::size_t held_by, const HostStretch& stretch);

/// Whether an account names what the host did during this part.
constexpr bool has_names(Part part) {
  return part == Part::kHost || part == Part::kIdle || part == Part::kDataWait;
}

/// Whether it names what the host did during a stretch: also what of an update is no op.
constexpr bool has_names(const CauseSpan& stretch) {
  return has_names(stretch.part) || (stretch.part == Part::kOptimizer && !stretch.held_by);
}

/// Time of such a part with one name.
struct NamedTime {
  Part part = Part::kHost;
  std::size_t path = 0;          // what covered it: of the rank's names
  std::optional<Part> before{};  // what the account's lane did next in the step, if anything

  friend auto operator<=>(const NamedTime&, const NamedTime&) = default;
};

/// "before the forward pass", "after the last op of the step".
std::string ahead_text(const NamedTime& time);
/// Its innermost name, else ahead_text().
std::string innermost_name(const TracedRank& rank, const NamedTime& time);

/// In which collective.
using TracedStall = std::pair<std::int64_t, std::string>;

struct TracedAccount {
  std::size_t rank = 0;
  std::size_t step = 0;     // index into its rank's steps
  std::int64_t number = 0;  // the step's
  std::int64_t wall_ns = 0;
  EnumArray<Part, std::int64_t> part_ns{};  // add up to wall_ns
  std::int64_t waiting_ns = 0;              // of exposed communication: until the last rank entered
  std::int64_t hidden_ns = 0;               // communication beside other work or waits; in no part
  std::int64_t stalled_ns = 0;  // of exposed communication: from when it would usually have ended
  TracedStall longest_stall{};
  /// Add up to the parts that have names; of the optimizer, what is no op.
  std::map<NamedTime, std::int64_t> named_ns{};

  [[nodiscard]] std::int64_t moving_ns() const {
    return part_ns[Part::kExposedCommunication] - waiting_ns;
  }
};

/// What a collective cost all ranks, summed over steps; one that recurs in every step is one row.
struct BucketAccount {
  std::string name{};
  std::int64_t bytes = 0;
  int ranks = 0;                 // that take part; 0: unknown
  std::int64_t count = 0;        // of exchanges
  std::int64_t works = 0;        // over all ranks
  std::int64_t moving_ns = 0;    // from the last rank's entry to the end; the shortest of ranks
  std::int64_t duration_ns = 0;  // from a rank's entry to its end, summed over ranks
  std::int64_t exposed_ns = 0;
  std::int64_t waiting_ns = 0;

  /// "all_reduce of 25.00 MiB".
  [[nodiscard]] std::string text() const;
  /// Bytes per second on the bus, as nccl-tests counts them; 0 if unknown, as for messages, whose
  /// records begin when they are posted and end when someone has waited for them.
  [[nodiscard]] double bus_bytes_per_s() const;
};

/// The steps of a run, of every rank.
struct RunAccount {
  std::vector<TracedAccount> accounts{};  // by step, then rank
  /// Those of the longest steps, a fifth of all or fewer, that take at least twice as long as any
  /// other, and one of three or four that takes four times as long; everything else is about the
  /// others.
  std::vector<TracedAccount> outliers{};
  std::vector<BucketAccount> buckets{};
  /// Whether the last entry into a collective is unknown, for want of a rank's trace.
  bool lacks_ranks = false;
  /// waited_ns[a][b]: how long rank a waited for rank b in exposed communication.
  std::vector<std::vector<std::int64_t>> waited_ns{};

  /// Of all steps, in that order.
  [[nodiscard]] std::vector<TracedAccount> all() const;
};

RunAccount account_of(const TracedRun& run);

/// Something that can be removed, and what a step of the run would gain without it: the steps are
/// replayed, in which a rank enters its exchanges as much earlier as it gained.
struct TracedFix {
  enum class Kind {
    kName,       // what the host does
    kPart,       // a part that is no work, of which no name is half
    kLateRank,   // what a rank does longer than the others
    kTurns,      // ranks wait for each other in turns
    kBubble,     // a stage of a pipeline waits for others, but for the slowest one
    kExchanges,  // collectives, from the last rank's entry on
  };
  Kind kind = Kind::kName;
  Part part = Part::kHost;
  std::string name{};
  /// In the mean of steps and ranks. The low end is what is seen in the account; the high one adds
  /// what was hidden, and what it computed itself; both with twice the error of the mean.
  Estimate gain_s{};
};

/// The one ranking of causes: the sentence about the bottleneck is about the first, unless work
/// takes longer. It is what gains most, or a late rank that gains half as much or more; of names
/// within each other, that which cause_in() takes.
std::vector<TracedFix> fixes_of(const TracedRun& run, const RunAccount& account);

/// By rank, the seconds that all its steps would gain on a network that moves bytes in no time.
std::vector<double> ideal_network_gains(const TracedRun& run, const RunAccount& account);

/// How busy a device of a rank's trace was with what the host launched until the end of the last
/// step. If the trace has no launches: with all its work.
struct DeviceBreakdown {
  std::size_t rank = 0;
  std::string device{};  // its number in the trace
  Breakdown breakdown{};
};

/// By rank and device; none for a trace without a device.
std::vector<DeviceBreakdown> breakdowns_of(const TracedRun& run);

}  // namespace barestep
