// Reads traces in the format of PyTorch's profiler (Kineto), as a stream: ours, and anyone's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/program.h"
#include "profiler/trace.h"

namespace barestep {

/// Traces as they are read; sorts members, since a profiler may write any number of them.
using EventJson = nlohmann::json;

/// Throws Error(kBadData) about a trace.
[[noreturn]] void refuse_trace(const std::filesystem::path& path, std::string why,
                               const char* remedy);

/// Where the text of a trace comes from.
struct TraceSource {
  std::filesystem::path path{};  // for messages
  /// Fills in the next bytes, unpacked, and returns how many; 0 at the end, below 0 if its gzip
  /// stream is corrupt.
  std::function<int(std::span<char>)> read{};
};

/// A file, plain or gzipped. Throws Error(kNoInput) if it cannot be read.
TraceSource open_trace(const std::filesystem::path& path);

/// Calls `on_event` for each event of a trace, and returns the rest of it, an object; an array is
/// that of the events. Never holds more than one of them in memory. Throws Error(kBadData) if it is
/// corrupt, is not JSON, or holds more than is sensible.
EventJson read_trace_json(const TraceSource& source, const char* remedy,
                          const std::function<void(EventJson&)>& on_event);

/// An index into TraceFile::names or ::rows.
using TraceIndex = std::uint32_t;

/// An event with a duration, as far as an account needs it.
struct TraceEvent {
  enum class Kind : std::uint8_t {
    kOp,          // of PyTorch, on a thread of the host
    kAnnotation,  // of a stretch of the program, on a thread of the host
    kCall,        // to the GPU's runtime or driver
    kKernel,      // work on a device
    kCopy,        //
    kFill,        //
    kStreamWait,  // a stream waits for an event of another one
    kFunction,    // of Python, on a thread of the host; in TraceFile::functions
  };
  Kind kind = Kind::kOp;
  bool is_backward = false;  // op: belongs to an earlier op of the forward pass
  bool is_recorded = false;  // op: autograd may differentiate it
  bool is_step = false;      // annotation: a ProfilerStep
  bool is_update = false;    // on the host: an optimizer's
  TraceIndex name = 0;
  TraceIndex row = 0;            // its thread, or its stream
  std::int32_t details = -1;     // index into the file's nodes, steps, waits or linears, by kind;
                                 // of an op that posts a message, the other rank
  std::int32_t collective = -1;  // index into the file's collectives
  std::int64_t begin_ns = 0;     // since 1970, or what the file counts from
  std::int64_t end_ns = 0;
  std::int64_t correlation = 0;  // of a call and the work that it queued; of an op and backward of
                                 // it, ascending (-1: not told)

  [[nodiscard]] bool is_work() const {
    return kind == Kind::kKernel || kind == Kind::kCopy || kind == Kind::kFill;
  }
  /// Whether it is an op or an annotation.
  [[nodiscard]] bool is_on_host() const { return kind == Kind::kOp || kind == Kind::kAnnotation; }
};

/// A collective's arguments.
struct TracedCollective {
  std::string name{};   // "all_reduce"
  std::string group{};  // of ranks
  std::int64_t bytes = 0;
  int ranks = 0;          // 0: not told
  int peer = -1;          // of a message: the other rank; -1: not told
  bool is_share = false;  // `bytes` are those of a rank's input, a share of the payload

  /// From one rank to another, as stages of a pipeline exchange.
  [[nodiscard]] bool is_message() const { return name == "send" || name == "receive"; }
};

/// Work of a trace by barestep: which node of which step it was, and what it waited for.
struct TracedNode {
  struct Wait {
    std::int64_t node = 0;
    std::int64_t device = 0;
    std::int64_t steps_back = 0;
  };
  std::int64_t step = 0;
  std::int64_t node = 0;
  std::int64_t device = 0;
  Phase phase = Phase::kForward;
  double flops = 0;  // 0: none, or not told
  std::vector<Wait> waits{};
};

/// The host's times of a step in a trace by barestep; see HostTimes.
struct TracedStep {
  std::int64_t step = 0;
  std::int64_t start_ns = 0, fetch_begin_ns = 0, fetched_ns = 0;
  bool overlaps_previous = false, overlaps_next = false, joins_lanes = false;
};

/// A stream that waits for what another one had to do when an event was recorded.
struct TracedStreamWait {
  std::int64_t stream = 0, on_stream = 0, record_correlation = 0;
};

/// A thread or a stream.
struct TracedRow {
  std::string process{};  // of a stream: its device
  std::string thread{};
};

/// The trace of one rank, or of one device of a process.
struct TraceFile {
  std::filesystem::path path{};
  std::optional<std::int64_t> rank{};
  std::int64_t world_size = 0;  // ranks of the job; 0: not told
  bool is_ours = false;
  std::string gpu{};      // its name, if the file tells
  std::string host{};     // its machine, likewise
  std::string process{};  // the host's process id
  std::vector<std::string> names{};
  std::vector<TracedRow> rows{};
  std::vector<TraceEvent> events{};     // by begin; of those, the longest first
  std::vector<TraceEvent> functions{};  // likewise; only those of the user's program
  /// When a ProfilerStep, the update of an optimizer and an op of backward began, ascending.
  std::vector<std::int64_t> steps_ns{}, updates_ns{}, backward_ns{};
  bool has_stacks = false;  // Python's functions were recorded
  std::vector<TracedCollective> collectives{};
  std::vector<TracedNode> nodes{};
  std::vector<TracedStep> steps{};
  std::vector<TracedStreamWait> waits{};
  /// The rows, inputs and outputs of a linear layer; 0 if its input is no matrix. A module's
  /// aten::linear has an aten::addmm in it.
  struct Linear {
    std::int64_t rows = 0, inputs = 0, outputs = 0;
    bool is_module = false;
  };
  std::vector<Linear> linears{};
  /// Null if the event is no linear layer, or has no shapes.
  [[nodiscard]] const Linear* linear_of(const TraceEvent& event) const {
    const std::string& name = names[event.name];
    const bool is_linear = name == "aten::linear" || name == "aten::addmm";
    return is_linear && event.details >= 0 ? &linears[static_cast<std::size_t>(event.details)]
                                           : nullptr;
  }
  /// Where backward adds to a parameter's gradient; on a device, where it launches that.
  struct Gradient {
    std::int64_t begin_ns = 0, end_ns = 0;
    std::int64_t bytes = 0;  // 0: no shapes were recorded
  };
  std::vector<Gradient> gradients{};  // by begin
  std::int64_t left_out = 0;          // events without a time or a duration that can be meant
  std::int64_t far_apart = 0;         // events a day or more from all others, left out too
};

/// Whether an op is no part of a forward pass, though autograd takes note of it.
bool only_reads(std::string_view op);

/// Whether one of these moments, which are ascending, is within an event.
bool has_within(const std::vector<std::int64_t>& moments_ns, const TraceEvent& event);

/// Whether an optimizer's step has backward passes in it, as that of LBFGS has.
bool has_passes_in_update(const TraceFile& file);

/// Reads a trace. Throws Error(kBadData) if it is none, or has no event with a duration.
TraceFile read_trace_file(const TraceSource& source);

}  // namespace barestep
