// What ran in the steps of traces: on every lane, by which phase, queued when and after what.
//
// A trace by barestep tells all of that. For others, a kernel's phase follows from where the host
// was when it launched it, and its step from the same moment. Waits between streams follow from
// CUDA's records of them, if the trace has any; otherwise only order and time are known. Without a
// device, the work is that of ops on threads: one that calls others is cut where a collective ended
// when the next one began, since there it waited.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/explain/trace_events.h"
#include "lab/explain/trace_names.h"
#include "profiler/account.h"

namespace barestep {

/// A piece of work on a stream, or an op on the host of a trace without a device.
struct TracedWork {
  std::size_t rank = 0;  // index into TracedRun::ranks
  std::size_t lane = 0;  // index into its lanes
  TraceIndex name = 0;
  TraceIndex op = 0;  // the op that launched it; its own name if none is known
  Part part = Part::kForward;
  bool is_input = false;
  bool continues = false;        // the rest of an op that waited for a collective
  std::int32_t collective = -1;  // index into the file's
  std::int64_t node = -1;        // of a program of barestep
  std::optional<std::int64_t> queued_ns{};
  std::int64_t begin_ns = 0, end_ns = 0;
  std::int64_t first_end_ns = 0;          // of a collective: on any rank
  std::optional<std::size_t> step{};      // index into its rank's steps
  std::optional<std::size_t> exchange{};  // index into the run's
  std::optional<std::size_t> previous{};  // on its lane
  std::vector<std::size_t> awaited{};     // besides, on other lanes
  std::optional<std::size_t> posted{};    // by this op of the host, a collective that outlives it

  [[nodiscard]] bool is_collective() const { return collective >= 0; }
};

/// A step as the host saw it, and the wall time that its account covers.
struct RankStep {
  std::int64_t number = 0;
  std::int64_t begin_ns = 0, end_ns = 0;
  std::int64_t fetch_begin_ns = 0, fetched_ns = 0;  // equal if no input is fetched at its end
  std::int64_t wall_begin_ns = 0, wall_end_ns = 0;
  bool has_account = true;
  bool is_cut = false;  // by the profile's begin or end; then it has no account
};

/// The time that any of them covers: in order, none touching another.
std::vector<HostStretch> united(std::vector<HostStretch> stretches);

/// Until when a collective's record may end for which a thread of the host waited during this
/// stretch: it wakes the thread before it ends.
constexpr std::int64_t noticed_until(const HostStretch& wait) {
  return wait.end_ns + (wait.end_ns - wait.begin_ns) / 10;
}

struct TracedLane {
  TraceIndex row = 0;
  std::vector<std::size_t> works{};  // in the order of the lane
};

/// What runs on a rank's lanes from a moment to the next one's.
struct RunningWork {
  std::int64_t from_ns = 0;
  std::optional<std::size_t> work{};  // of the first lane on which something runs
};

/// The works of all lanes of a rank, for questions about a moment.
struct TracedMoments {
  std::vector<RunningWork> running{}, backward{};         // of any part; only of the backward pass
  std::vector<std::int64_t> begins_ns{};                  // ascending
  std::vector<std::size_t> by_end{}, exchanges_by_end{};  // works; only collectives
  std::vector<std::size_t> exchanges_by_first_end{};
};

/// The steps of one trace.
struct TracedRank {
  TraceFile file{};
  std::int64_t rank = 0;
  bool on_host = false;  // no device: the lanes are threads
  bool has_launches = false, has_stream_waits = false;
  std::int64_t updates_of_step = 0;  // its steps end with them, for want of other marks; else 0
  std::size_t other_updates = 0;     // that end none then, since they are of another optimizer
  bool evaluates = false;            // by a name, a loss, or ops of a forward pass
  bool is_whole = false;             // its only step is all of the trace
  std::int64_t backlog = 0;          // works that were queued before its first step
  std::int64_t overlaps = 0;         // works that ended after the next of their stream began
  std::int64_t launches = 0, lost_launches = 0;  // of kernels; those without any
  std::int64_t start_up_ns = 0;  // of its first step, before the first work of a device
  std::vector<TracedLane> lanes{};
  std::size_t main = 0;  // the lane that accounts describe
  std::vector<RankStep> steps{};
  std::vector<TracedStep> traced_steps{};                 // of ours, likewise
  std::vector<std::vector<std::size_t>> works_of_step{};  // lane by lane
  TracedMoments moments{};
  std::vector<HostStretch> blocked{};   // the host waits for the device; united
  std::vector<HostStretch> loading{};   // the host waits for its data loader; united
  std::vector<HostStretch> updating{};  // the host updates parameters; united
  TracedNames names{};                  // of what its threads that train did
  std::int64_t shift_ns = 0;            // what was added to its clock
  std::int64_t shift_error_ns = 0;

  /// Whether the kernels of most launches are missing.
  [[nodiscard]] bool lacks_kernels() const {
    return launches >= 10 && 2 * lost_launches > launches;
  }
  [[nodiscard]] const std::string& process_of(std::size_t lane) const {
    return file.rows[lanes[lane].row].process;
  }
};

/// A collective, with the work of every rank that takes part.
struct TracedExchange {
  std::int64_t step = 0;                        // its number
  std::vector<std::size_t> works{};             // by rank, of those that are here
  std::optional<std::int64_t> last_begin_ns{};  // nothing unless all of its ranks are here
  std::optional<std::size_t> last_rank{};
};

/// Traces of one run, by rank, with their works in one list.
struct TracedRun {
  std::vector<TracedRank> ranks{};
  std::vector<TracedWork> works{};
  std::vector<TracedExchange> exchanges{};

  [[nodiscard]] const TracedCollective& collective_of(const TracedWork& work) const {
    return ranks[work.rank].file.collectives[static_cast<std::size_t>(work.collective)];
  }
  /// Of a work; null if it is of none.
  [[nodiscard]] const TracedExchange* exchange_of(std::size_t work) const {
    return works[work].exchange ? &exchanges[*works[work].exchange] : nullptr;
  }
};

constexpr const char* kRankRemedy = "give each rank's trace once";

/// The run of these traces; each has a rank of its own. Where clocks of ranks contradict each
/// other, they are shifted: no rank leaves a collective of all before the last one has entered.
/// Throws Error(kBadData) if two files are of one rank, or of one process at two times.
TracedRun run_from(std::vector<TraceFile> files);

/// The run of these files. Throws Error as open_trace(), read_trace_file() and run_from() do, and
/// kBadData if one is given twice.
TracedRun read_run(const std::vector<std::filesystem::path>& paths);

}  // namespace barestep
