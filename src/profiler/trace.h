// The trace of a run: what Perfetto draws, and what HolisticTraceAnalysis and TensorBoard compute
// with, in the conventions of PyTorch's profiler (Kineto).
//
// A trace is of one rank and one device. The streams of a CPU device are shown as a GPU's: their
// work as kernels and copies, each tied to the host's call that queued it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/device.h"
#include "core/ops.h"
#include "profiler/profile.h"

namespace barestep {

/// Members keep their order: readers take some from the first lines of a file.
using TraceJson = nlohmann::ordered_json;

/// One moment, by the host's clock (core/clock.h) and by the calendar: what turns records of
/// one process into times that can be laid beside another's.
struct ClockOrigin {
  double host_s = 0;
  std::int64_t unix_ns = 0;
};

/// Both clocks, read one right after the other.
ClockOrigin clock_origin();

/// Whose row an event stands in: of the host a process and a thread, of a device its index and a
/// stream.
struct TraceRow {
  std::int64_t pid = 0;
  std::int64_t tid = 0;
};

/// A stretch in whole nanoseconds since the origin, so that what followed each other still does.
struct TraceSpan {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// Collects events, one to a line. `args` are JSON objects; null for none.
class TraceEvents {
 public:
  explicit TraceEvents(ClockOrigin origin) : origin_(origin) {}

  [[nodiscard]] std::int64_t ns(double host_s) const;
  [[nodiscard]] TraceSpan span(double begin_s, double end_s) const {
    return {ns(begin_s), ns(end_s)};
  }

  void slice(std::string_view category, std::string_view name, TraceRow row, TraceSpan span,
             const TraceJson& args);
  /// An arrow from a slice of `from` that is open at `from_ns` to one of `to` at `to_ns`.
  void arrow(std::string_view category, std::int64_t id, TraceRow from, std::int64_t from_ns,
             TraceRow to, std::int64_t to_ns);
  void counter(std::string_view name, TraceRow row, std::int64_t at_ns, const TraceJson& args);
  void instant(std::string_view category, std::string_view name, TraceRow row, std::int64_t at_ns,
               const TraceJson& args);
  /// The names of a process and of a thread, and where they stand among others.
  void name_process(std::int64_t pid, std::string_view name, std::string_view label,
                    std::int64_t sort_index);
  void name_thread(TraceRow row, std::string_view name, std::int64_t sort_index);
  /// What closes PyTorch's traces.
  void close();

  /// The whole file; `head` are the members before the events.
  [[nodiscard]] std::string file(const TraceJson& head, std::string_view name) const;

 private:
  void line(const TraceJson& event);
  void meta(std::string_view name, TraceRow row, const TraceJson& args);

  ClockOrigin origin_;
  std::string lines_;
  std::int64_t first_ns_ = 0, last_ns_ = 0;  // of all slices
  bool has_slices_ = false;
};

struct TraceContext {
  std::string program;  // "mlp_single"
  std::string version;
  std::string trace_name;  // of the file
  int rank = 0;
  int world = 1;
  std::string backend;  // of communication: "nccl", "mpi"; empty for one rank
  int device = 0;       // its index
  std::string device_name;
  DeviceKind kind = DeviceKind::kCpu;
  std::int64_t device_bytes = 0;
  Multiprocessors multiprocessors{};
  std::int64_t pid = 0;      // of the host, unlike every device's index
  std::int64_t thread = 0;   // that queues
  double clock_error_s = 0;  // by how much its times may differ from those of other ranks
};

/// The host's row and a lane's of a trace.
TraceRow host_row(const TraceContext& context);
TraceRow lane_row(const TraceContext& context, Lane lane);

/// Adds the events of the context's device, and the names of all rows.
void add_profile(TraceEvents& events, const Profile& profile, const TraceContext& context);

/// Readers know communication by NCCL's names, whoever carries it out.
struct CollectiveNames {
  const char* kernel;
  const char* annotation;
  const char* collective;
};

CollectiveNames names_of(const Collective& collective);

/// The members of the file that describe the run.
TraceJson trace_head(const TraceContext& context);

/// The whole file of one device.
std::string trace_text(const TraceEvents& events, const TraceContext& context);

/// Writes a trace, gzipped where the name ends in .gz. Throws Error as replace_file() does.
void write_trace(const std::filesystem::path& path, std::string_view text);

}  // namespace barestep
