#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <stdexcept>
#include <vector>

#include "core/error.h"
#include "core/input_file.h"
#include "core/json_document.h"
#include "core/output_file.h"
#include "lab/commands.h"
#include "profiler/trace.h"
#include "session/outputs.h"

namespace barestep {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The ids of a rank's processes, arrows and calls are offset, so they follow those of lower ranks.
constexpr std::int64_t kProcesses = 10'000'000;
constexpr std::int64_t kArrows = 1'000'000'000;

// Far more than any trace has; keeps sums of these small enough.
constexpr std::int64_t kMostTraceRanks = 1 << 20;
constexpr std::int64_t kMostNumber = std::int64_t{1} << 53;
constexpr std::int64_t kMostTraceUs = 1'000'000'000'000'000;
constexpr std::int64_t kMostBaseNs = std::int64_t{1} << 62;
constexpr std::size_t kMostUnpackedBytes = std::size_t{1} << 30;

[[noreturn]] void refuse_trace(const std::filesystem::path& path, std::string why) {
  fail(ExitCode::kBadData, {.what = "trace",
                            .value = path.string(),
                            .why = std::move(why),
                            .remedy = "give the files that --trace wrote, each once"});
}

std::string unpacked(const std::filesystem::path& path) {
  InputFile file(path, "trace");
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> input(gzdopen(file.release(), "rb"), gzclose);
  std::string text;
  std::vector<char> piece(1 << 18);
  int count = 0;
  while ((count = gzread(input.get(), piece.data(), static_cast<unsigned>(piece.size()))) > 0) {
    text.append(piece.data(), static_cast<std::size_t>(count));
    if (text.size() > kMostUnpackedBytes) refuse_trace(path, "holds more than 1 GiB");
  }
  if (count < 0) refuse_trace(path, "its gzip stream is corrupt");
  return text;
}

struct RankTrace {
  OrderedJson json;
  std::int64_t rank = 0;
  std::int64_t base_ns = 0;
};

/// The number, if it is within the limits; otherwise throws std::out_of_range.
std::int64_t within(const OrderedJson& value, std::int64_t least, std::int64_t most) {
  const auto number = value.get<double>();
  if (!(number >= static_cast<double>(least) && number <= static_cast<double>(most))) {
    throw std::out_of_range("a number of a trace");
  }
  return value.get<std::int64_t>();
}

RankTrace read_trace(const std::filesystem::path& path) {
  RankTrace trace;
  try {
    const std::string text = unpacked(path);
    if (!is_shallow_json(text)) {
      refuse_trace(path,
                   fmt::format("is nested deeper than {} arrays and objects", kMostJsonDepth));
    }
    trace.json = OrderedJson::parse(text);
    trace.rank = within(trace.json.at("distributedInfo").at("rank"), 0, kMostTraceRanks);
    trace.base_ns = within(trace.json.at("baseTimeNanoseconds"), 0, kMostBaseNs);
    if (!trace.json.at("traceEvents").is_array()) refuse_trace(path, "traceEvents is not an array");
  } catch (const OrderedJson::exception&) {
    refuse_trace(path, "is not the trace of a single rank");
  } catch (const std::out_of_range&) {
    refuse_trace(path, "is not the trace of a single rank");
  }
  return trace;
}

/// Moves an event to its rank's rows and to the common time axis.
void move_event(OrderedJson& event, const RankTrace& trace, std::int64_t base_ns) {
  const std::int64_t later_ns = trace.base_ns - base_ns;
  const std::string phase = event.at("ph").get<std::string>();
  if (phase != "M") {
    static_cast<void>(within(event.at("ts"), -kMostTraceUs, kMostTraceUs));
    const auto ns = std::llround(event.at("ts").get<double>() * 1e3);
    event["ts"] = static_cast<double>(ns + later_ns) / 1e3;
  }
  OrderedJson& pid = event.at("pid");
  if (pid.is_number_integer()) {
    pid = trace.rank * kProcesses + pid.get<std::int64_t>() % kProcesses;
  } else {
    pid = fmt::format("rank {} {}", trace.rank, pid.get<std::string>());
  }
  const auto make_unique_by_rank = [&](OrderedJson& object, const char* key) {
    if (object.contains(key))
      object[key] = trace.rank * kArrows + within(object[key], -kMostNumber, kMostNumber);
  };
  make_unique_by_rank(event, "id");
  if (event.contains("args")) {
    for (const char* key : {"External id", "correlation"}) make_unique_by_rank(event["args"], key);
  }
  if (phase != "M") return;
  OrderedJson& args = event.at("args");
  const std::string name = event.at("name").get<std::string>();
  if (name == "process_name") {
    args["name"] = fmt::format("rank {}: {}", trace.rank, args.at("name").get<std::string>());
  } else if (name == "process_sort_index") {
    args["sort_index"] =
        within(args.at("sort_index"), -kMostNumber, kMostNumber) + trace.rank * kProcesses;
  }
}

/// `name` is the name of the merged trace.
std::string merged(std::span<const std::filesystem::path> paths, const std::string& name) {
  std::vector<RankTrace> traces;
  std::set<std::int64_t> ranks;
  for (const auto& path : paths) {
    traces.push_back(read_trace(path));
    if (!ranks.insert(traces.back().rank).second) {
      refuse_trace(path, fmt::format("another file also holds rank {}", traces.back().rank));
    }
  }
  const auto first = std::min_element(
      traces.begin(), traces.end(),
      [](const RankTrace& a, const RankTrace& b) { return a.base_ns < b.base_ns; });
  const std::int64_t base_ns = first->base_ns;
  OrderedJson all = {{"schemaVersion", 1},
                     {"displayTimeUnit", "ms"},
                     {"baseTimeNanoseconds", base_ns},
                     {"traceEvents", OrderedJson::array()},
                     {"traceName", on_one_line(name)}};
  for (std::size_t i = 0; i < traces.size(); ++i) {
    try {
      for (OrderedJson& event : traces[i].json.at("traceEvents")) {
        move_event(event, traces[i], base_ns);
        all["traceEvents"].push_back(std::move(event));
      }
    } catch (const OrderedJson::exception&) {
      refuse_trace(paths[i], "one of its events is malformed");
    } catch (const std::out_of_range&) {
      refuse_trace(paths[i], "one of its events is malformed");
    }
  }
  return all.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace

void merge_traces(const std::filesystem::path& out, std::span<const std::filesystem::path> paths) {
  require_writable(out);
  std::vector<FileUse> inputs;
  for (const auto& path : paths) inputs.push_back({"merge-traces", path});
  require_separate_files({{"output file", out}}, inputs);
  write_trace(out, merged(paths, out.string()));
}

}  // namespace barestep
