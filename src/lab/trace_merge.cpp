#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/output_file.h"
#include "lab/commands.h"
#include "lab/explain/trace_events.h"
#include "profiler/trace.h"
#include "session/outputs.h"

namespace barestep {
namespace {

// The ids of a rank's processes, arrows and calls are offset, so they follow those of lower ranks.
constexpr std::int64_t kProcesses = 10'000'000;
constexpr std::int64_t kArrows = 1'000'000'000;

// Far more than any trace has; keeps sums of these small enough.
constexpr std::int64_t kMaxTraceRanks = 1 << 20;
constexpr std::int64_t kMaxNumber = std::int64_t{1} << 53;
constexpr std::int64_t kMaxTraceUs = 1'000'000'000'000'000;
constexpr std::int64_t kMaxBaseNs = std::int64_t{1} << 62;

constexpr const char* kMergeRemedy = "give the files that --trace wrote, each once";

struct RankTrace {
  std::filesystem::path path;
  std::int64_t rank = 0;
  std::int64_t base_ns = 0;
};

/// The number, if it is within the limits; otherwise throws an exception of the parser's.
std::int64_t within(const EventJson& value, std::int64_t min, std::int64_t max) {
  const auto number = value.get<double>();
  if (!(number >= static_cast<double>(min) && number <= static_cast<double>(max))) {
    throw EventJson::out_of_range::create(401, "a number of a trace", &value);
  }
  return value.get<std::int64_t>();
}

/// The trace without its events.
RankTrace read_trace(const std::filesystem::path& path) {
  RankTrace trace{.path = path};
  try {
    const EventJson rest = read_trace_json(open_trace(path), kMergeRemedy, [](EventJson&) {});
    trace.rank = within(rest.at("distributedInfo").at("rank"), 0, kMaxTraceRanks);
    trace.base_ns = within(rest.at("baseTimeNanoseconds"), 0, kMaxBaseNs);
    if (!rest.at("traceEvents").is_array())
      refuse_trace(path, "traceEvents is not an array", kMergeRemedy);
  } catch (const EventJson::exception&) {
    refuse_trace(path, "is not the trace of a single rank", kMergeRemedy);
  }
  return trace;
}

/// Moves an event to its rank's rows and to the common time axis.
void move_event(EventJson& event, const RankTrace& trace, std::int64_t base_ns) {
  const std::int64_t later_ns = trace.base_ns - base_ns;
  const std::string phase = event.at("ph").get<std::string>();
  if (phase != "M") {
    static_cast<void>(within(event.at("ts"), -kMaxTraceUs, kMaxTraceUs));
    const auto ns = std::llround(event.at("ts").get<double>() * 1e3);
    event["ts"] = static_cast<double>(ns + later_ns) / 1e3;
  }
  EventJson& pid = event.at("pid");
  if (pid.is_number_integer()) {
    pid = trace.rank * kProcesses + pid.get<std::int64_t>() % kProcesses;
  } else {
    pid = fmt::format("rank {} {}", trace.rank, pid.get<std::string>());
  }
  const auto make_unique_by_rank = [&](EventJson& object, const char* key) {
    if (object.contains(key))
      object[key] = trace.rank * kArrows + within(object[key], -kMaxNumber, kMaxNumber);
  };
  make_unique_by_rank(event, "id");
  if (event.contains("args")) {
    for (const char* key : {"External id", "correlation"}) make_unique_by_rank(event["args"], key);
  }
  if (phase != "M") return;
  EventJson& args = event.at("args");
  const std::string name = event.at("name").get<std::string>();
  if (name == "process_name") {
    args["name"] = fmt::format("rank {}: {}", trace.rank, args.at("name").get<std::string>());
  } else if (name == "process_sort_index") {
    args["sort_index"] =
        within(args.at("sort_index"), -kMaxNumber, kMaxNumber) + trace.rank * kProcesses;
  }
}

/// The traces without their events, each of a rank of its own.
std::vector<RankTrace> read_traces(std::span<const std::filesystem::path> paths) {
  std::vector<RankTrace> traces;
  std::set<std::int64_t> ranks;
  for (const auto& path : paths) {
    traces.push_back(read_trace(path));
    if (!ranks.insert(traces.back().rank).second) {
      refuse_trace(path, fmt::format("another file also holds rank {}", traces.back().rank),
                   kMergeRemedy);
    }
  }
  return traces;
}

std::string text_of_json(const EventJson& value) {
  return value.dump(-1, ' ', false, EventJson::error_handler_t::replace);
}

/// Hands over the merged trace, with the events one after another; `name` is its name.
void write_merged(std::span<const RankTrace> traces, const std::string& name,
                  const ByteSink& sink) {
  constexpr std::size_t kPieceBytes = 1 << 18;
  const std::int64_t base_ns = std::ranges::min(traces, {}, &RankTrace::base_ns).base_ns;
  std::string text =
      fmt::format(R"({{"schemaVersion":1,"displayTimeUnit":"ms","baseTimeNanoseconds":{},)"
                  R"("traceName":{},"traceEvents":[)",
                  base_ns, text_of_json(on_one_line(name)));
  const char* before = "\n";
  for (const RankTrace& trace : traces) {
    const auto add = [&](EventJson& event) {
      move_event(event, trace, base_ns);
      text += before + text_of_json(event);
      before = ",\n";
      if (text.size() < kPieceBytes) return;
      sink(text);
      text.clear();
    };
    try {
      read_trace_json(open_trace(trace.path), kMergeRemedy, add);
    } catch (const EventJson::exception&) {
      refuse_trace(trace.path, "one of its events is malformed", kMergeRemedy);
    }
  }
  sink(text + "\n]}\n");
}

}  // namespace

void merge_traces(const std::filesystem::path& out, std::span<const std::filesystem::path> paths) {
  require_writable(out);
  std::vector<FileUse> inputs;
  for (const auto& path : paths) inputs.push_back({"merge-traces", path});
  require_separate_files({{"output file", out}}, inputs);
  const std::vector<RankTrace> traces = read_traces(paths);
  write_trace(out, [&](const ByteSink& sink) { write_merged(traces, out.string(), sink); });
}

}  // namespace barestep
