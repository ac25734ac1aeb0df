// The events of a trace as text, in the conventions of PyTorch's profiler (Kineto), which Perfetto,
// HolisticTraceAnalysis and TensorBoard read. What is in a trace is trace.h's; this is its grammar.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace barestep {

/// One moment, told by the host's clock (core/clock.h) and by the calendar: what turns records of
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

/// Collects events, one to a line. `args` are the inside of a JSON object.
class TraceEvents {
 public:
  explicit TraceEvents(ClockOrigin origin) : origin_(origin) {}

  [[nodiscard]] std::int64_t ns(double host_s) const;
  [[nodiscard]] TraceSpan span(double begin_s, double end_s) const {
    return {ns(begin_s), ns(end_s)};
  }

  void slice(std::string_view category, std::string_view name, TraceRow row, TraceSpan span,
             std::string_view args);
  /// An arrow from a slice of `from` that is open at `from_ns` to one of `to` at `to_ns`.
  void arrow(std::string_view category, std::int64_t id, TraceRow from, std::int64_t from_ns,
             TraceRow to, std::int64_t to_ns);
  void counter(std::string_view name, TraceRow row, std::int64_t at_ns, std::string_view args);
  void instant(std::string_view category, std::string_view name, TraceRow row, std::int64_t at_ns,
               std::string_view args);
  /// The names of a process and of a thread, and where they stand among others.
  void name_process(std::int64_t pid, std::string_view name, std::string_view label,
                    std::int64_t sort_index);
  void name_thread(TraceRow row, std::string_view name, std::int64_t sort_index);
  /// What closes PyTorch's traces.
  void close();

  /// The whole file; `head` are the lines of its own members before the events.
  [[nodiscard]] std::string file(std::string_view head, std::string_view name) const;

 private:
  void line(const std::string& event);
  void meta(std::string_view name, TraceRow row, const std::string& args);

  ClockOrigin origin_;
  std::string lines_;
  std::int64_t first_ns_ = 0, last_ns_ = 0;  // of all slices
  bool has_slices_ = false;
};

/// With its quotes.
std::string json_string(std::string_view text);

/// Writes a trace, gzipped where the name ends in .gz. Throws Error as replace_file() does.
void write_trace(const std::filesystem::path& path, std::string_view text);

}  // namespace barestep
