// The trace of a run, for Perfetto, HolisticTraceAnalysis and TensorBoard, in the conventions of
// PyTorch's profiler (Kineto).
//
// A trace covers one rank and one device. The streams of a CPU device are shown like a GPU's: their
// work as kernels and copies, each linked to the host's call that queued it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/device.h"
#include "core/mesh.h"
#include "core/ops.h"
#include "core/output_file.h"
#include "profiler/profile.h"

namespace barestep {

/// Members keep their order, since readers expect some in the first lines of a file.
using TraceJson = nlohmann::ordered_json;

/// One moment on both the host's clock (core/clock.h) and the calendar. It converts records of one
/// process into times that can be compared with another's.
struct ClockOrigin {
  double host_s = 0;
  std::int64_t unix_ns = 0;
};

/// Reads both clocks in quick succession.
ClockOrigin clock_origin();

/// The row of an event: on the host a process and a thread, on a device its index and a stream.
struct TraceRow {
  std::int64_t pid = 0;
  std::int64_t tid = 0;
};

/// An interval in whole nanoseconds since the origin, so that rounding preserves order.
struct TraceSpan {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// Collects events, one per line. `args` are JSON objects; null for none.
class TraceEvents {
 public:
  explicit TraceEvents(ClockOrigin origin) : origin_(origin) {}

  [[nodiscard]] std::int64_t ns(double host_s) const;
  [[nodiscard]] TraceSpan span(double begin_s, double end_s) const {
    return {ns(begin_s), ns(end_s)};
  }

  void slice(std::string_view category, std::string_view name, TraceRow row, TraceSpan span,
             const TraceJson& args);
  /// An arrow from the slice on `from` at `from_ns` to the slice on `to` at `to_ns`.
  void arrow(std::string_view category, std::int64_t id, TraceRow from, std::int64_t from_ns,
             TraceRow to, std::int64_t to_ns);
  void counter(std::string_view name, TraceRow row, std::int64_t at_ns, const TraceJson& args);
  void instant(std::string_view category, std::string_view name, TraceRow row, std::int64_t at_ns,
               const TraceJson& args);
  /// The names of a process and of a thread, and their positions among others.
  void name_process(std::int64_t pid, std::string_view name, std::string_view label,
                    std::int64_t sort_index);
  void name_thread(TraceRow row, std::string_view name, std::int64_t sort_index);
  /// The final events of PyTorch's traces.
  void close();

  /// The whole file; `head` has the members before the events.
  [[nodiscard]] std::string file(const TraceJson& head, std::string_view name) const;

 private:
  void line(const TraceJson& event);
  void meta(std::string_view name, TraceRow row, const TraceJson& args);

  ClockOrigin origin_;
  std::string lines_;
  std::int64_t first_ns_ = 0, last_ns_ = 0;  // over all slices
  bool has_slices_ = false;
};

struct TraceContext {
  std::string program;  // e.g. "mlp_single"
  std::string version;
  std::string trace_name;  // for the file
  Mesh mesh{};             // of the ranks, or of the devices of one process
  std::string backend;     // of communication: "nccl", "mpi"; empty for one rank
  int device = 0;          // the device's index
  std::string device_name;
  DeviceKind kind = DeviceKind::kCpu;
  std::int64_t device_bytes = 0;
  Multiprocessors multiprocessors{};
  std::int64_t pid = 0;      // the host's; differs from every device's index
  std::int64_t thread = 0;   // the thread that queues
  double clock_error_s = 0;  // upper bound of the error relative to other ranks
};

/// The host's row and a lane's row in a trace.
TraceRow host_row(const TraceContext& context);
TraceRow lane_row(const TraceContext& context, Lane lane);

/// Adds the events of the context's device, and the names of all rows.
void add_profile(TraceEvents& events, const Profile& profile, const TraceContext& context);

/// Readers recognize communication by NCCL's names, whatever the transport.
struct CollectiveNames {
  std::string kernel;
  const char* annotation;
  const char* collective;
};

CollectiveNames names_of(const Collective& collective);

/// The members of the file that describe the run.
TraceJson trace_head(const TraceContext& context);

/// The whole file for one device.
std::string trace_text(const TraceEvents& events, const TraceContext& context);

/// Writes a trace, compressed if the name ends in .gz. Throws Error as replace_file() does.
void write_trace(const std::filesystem::path& path, std::string_view text);
void write_trace(const std::filesystem::path& path, const FileWriter& write);

}  // namespace barestep
