#include "profiler/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "core/clock.h"
#include "core/gzip.h"
#include "core/output_file.h"

namespace barestep {
namespace {

/// Microseconds with three decimals: nanoseconds, exactly.
std::string us(std::int64_t ns) {
  const char* const sign = ns < 0 ? "-" : "";
  return fmt::format("{}{}.{:03}", sign, std::abs(ns) / 1000, std::abs(ns) % 1000);
}

std::string place(TraceRow row) {
  return fmt::format(R"("pid": {}, "tid": {})", row.pid, row.tid);
}

}  // namespace

ClockOrigin clock_origin() {
  const double host_s = now_s();
  const auto unix_time = std::chrono::system_clock::now().time_since_epoch();
  return {host_s, std::chrono::duration_cast<std::chrono::nanoseconds>(unix_time).count()};
}

std::int64_t TraceEvents::ns(double host_s) const {
  return std::llround((host_s - origin_.host_s) * 1e9);
}

void TraceEvents::line(const std::string& event) {
  if (!lines_.empty()) lines_ += ",\n";
  lines_ += event;
}

void TraceEvents::slice(std::string_view category, std::string_view name, TraceRow row,
                        TraceSpan span, std::string_view args) {
  first_ns_ = has_slices_ ? std::min(first_ns_, span.begin_ns) : span.begin_ns;
  last_ns_ = has_slices_ ? std::max(last_ns_, span.end_ns) : span.end_ns;
  has_slices_ = true;
  line(fmt::format(
      R"({{"ph": "X", "cat": "{}", "name": {}, {}, "ts": {}, "dur": {}, "args": {{{}}}}})",
      category, json_string(name), place(row), us(span.begin_ns),
      us(std::max<std::int64_t>(0, span.end_ns - span.begin_ns)), args));
}

void TraceEvents::arrow(std::string_view category, std::int64_t id, TraceRow from,
                        std::int64_t from_ns, TraceRow to, std::int64_t to_ns) {
  const auto end = [&](const char* phase, TraceRow row, std::int64_t at_ns, const char* more) {
    line(fmt::format(R"({{"ph": "{}", "id": {}, {}, "ts": {}, "cat": "{}", "name": "{}"{}}})",
                     phase, id, place(row), us(at_ns), category, category, more));
  };
  end("s", from, from_ns, "");
  end("f", to, to_ns, R"(, "bp": "e")");
}

void TraceEvents::counter(std::string_view name, TraceRow row, std::int64_t at_ns,
                          std::string_view args) {
  line(fmt::format(R"({{"ph": "C", "name": {}, {}, "ts": {}, "args": {{{}}}}})", json_string(name),
                   place(row), us(at_ns), args));
}

void TraceEvents::instant(std::string_view category, std::string_view name, TraceRow row,
                          std::int64_t at_ns, std::string_view args) {
  line(fmt::format(
      R"({{"ph": "i", "s": "t", "cat": "{}", "name": {}, {}, "ts": {}, "args": {{{}}}}})", category,
      json_string(name), place(row), us(at_ns), args));
}

void TraceEvents::meta(std::string_view name, TraceRow row, const std::string& args) {
  line(fmt::format(R"({{"name": "{}", "ph": "M", "ts": 0.000, {}, "args": {{{}}}}})", name,
                   place(row), args));
}

void TraceEvents::name_process(std::int64_t pid, std::string_view name, std::string_view label,
                               std::int64_t sort_index) {
  const TraceRow row{pid, 0};
  meta("process_name", row, fmt::format(R"("name": {})", json_string(name)));
  meta("process_labels", row, fmt::format(R"("labels": {})", json_string(label)));
  meta("process_sort_index", row, fmt::format(R"("sort_index": {})", sort_index));
}

void TraceEvents::name_thread(TraceRow row, std::string_view name, std::int64_t sort_index) {
  meta("thread_name", row, fmt::format(R"("name": {})", json_string(name)));
  meta("thread_sort_index", row, fmt::format(R"("sort_index": {})", sort_index));
}

void TraceEvents::close() {
  const std::string first = us(first_ns_);
  line(fmt::format(R"({{"ph": "X", "cat": "Trace", "ts": {}, "dur": {}, "pid": "Spans", )"
                   R"_("tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)", )_"
                   R"("args": {{"Op count": 0}}}})",
                   first, us(last_ns_ - first_ns_)));
  line(fmt::format(R"({{"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", )"
                   R"("pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": {}}})",
                   first));
  line(fmt::format(R"({{"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", )"
                   R"("ts": {}}})",
                   us(last_ns_)));
}

std::string TraceEvents::file(std::string_view head, std::string_view name) const {
  return fmt::format(
      "{{\n\"schemaVersion\": 1,\n{}\"displayTimeUnit\": \"ms\",\n\"baseTimeNanoseconds\": {},\n"
      "\"traceEvents\": [\n{}\n],\n\"traceName\": {}\n}}\n",
      head, origin_.unix_ns, lines_, json_string(name));
}

std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

void write_trace(const std::filesystem::path& path, std::string_view text) {
  std::vector<std::byte> packed;
  auto bytes = std::as_bytes(std::span(text));
  if (path.extension() == ".gz") {
    packed = gzip_of(text);
    bytes = packed;
  }
  replace_file(path, std::span(&bytes, 1));
}

}  // namespace barestep
