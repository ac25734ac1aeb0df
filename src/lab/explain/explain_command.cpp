// mlp_lab explain: traces from files, and the report in files.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/input_file.h"
#include "core/output_file.h"
#include "lab/commands.h"
#include "lab/explain/explain_report.h"
#include "lab/explain/trace_ranks.h"
#include "lab/report/page.h"
#include "session/outputs.h"
#include "session/run_program.h"

namespace barestep {
namespace {

nlohmann::json account_json(const TracedRank& rank, const TracedAccount& account) {
  nlohmann::json parts = nlohmann::json::object(), named = parts;
  for (const Part part : kValuesOf<Part>) {
    parts[std::string(name_of(part))] = ns_seconds(account.part_ns[part]);
  }
  for (const auto& [time, ns] : account.named_ns) {
    nlohmann::json& seconds = named[std::string(name_of(time.part))][innermost_name(rank, time)];
    seconds = ns_seconds(ns) + (seconds.is_null() ? 0 : seconds.get<double>());
  }
  return {{"rank", rank.rank},
          {"step", account.number},
          {"wall_s", ns_seconds(account.wall_ns)},
          {"parts_s", parts},
          {"named_s", named},
          {"waiting_s", ns_seconds(account.waiting_ns)},
          {"moving_s", ns_seconds(account.moving_ns())},
          {"hidden_communication_s", ns_seconds(account.hidden_ns)}};
}

/// Of what results.json holds; its first member.
constexpr const char* kAccountFormat = "barestep account 1";
constexpr const char* kDifferenceFormat = "barestep difference 1";
constexpr const char* kFiguresFormat = "barestep figures 1";

/// What is shown, and results.json.
struct Explained {
  std::string title{}, name{};  // of the page, and of its plots' files
  std::vector<std::string> sentences{};
  Findings findings{};
  const char* format = kAccountFormat;
  nlohmann::json results{};
  std::string failure{};  // why the second of two runs fails; else empty
};

nlohmann::json fixes_json(const TracedRun& run, const RunAccount& account) {
  nlohmann::json fixes = nlohmann::json::array();
  for (const TracedFix& fix : fixes_of(run, account)) {
    fixes.push_back({{"part", name_of(fix.part)},
                     {"name", fix.name},
                     {"gain_s", fix.gain_s.median},
                     {"low_s", fix.gain_s.low},
                     {"high_s", fix.gain_s.high}});
  }
  return fixes;
}

/// Times in seconds.
nlohmann::json account_results(const TracedRun& run, const RunAccount& account,
                               const Findings& findings) {
  using nlohmann::json;
  json accounts = json::array(), buckets = json::array(), waits = json::array();
  for (const TracedAccount& step : account.all()) {
    accounts.push_back(account_json(run.ranks[step.rank], step));
    accounts.back()["outlier"] =
        std::ranges::find(account.outliers, step.number, &TracedAccount::number) !=
        account.outliers.end();
  }
  for (const BucketAccount& bucket : account.buckets) {
    buckets.push_back({{"collective", bucket.name},
                       {"bytes", bucket.bytes},
                       {"ranks", bucket.ranks},
                       {"count", bucket.count},
                       {"moving_s", ns_seconds(bucket.moving_ns)},
                       {"exposed_s", ns_seconds(bucket.exposed_ns)},
                       {"waiting_s", ns_seconds(bucket.waiting_ns)},
                       {"bus_bytes_per_s", bucket.bus_bytes_per_s()}});
  }
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    for (std::size_t other = 0; other < run.ranks.size(); ++other) {
      if (account.waited_ns[rank][other] == 0) continue;
      waits.push_back({{"rank", run.ranks[rank].rank},
                       {"for", run.ranks[other].rank},
                       {"seconds", ns_seconds(account.waited_ns[rank][other])}});
    }
  }
  json devices = json::array();
  for (const DeviceBreakdown& device : breakdowns_of(run)) {
    const Breakdown& times = device.breakdown;
    devices.push_back({{"rank", run.ranks[device.rank].rank},
                       {"device", device.device},
                       {"span_s", times.span_s},
                       {"compute_s", times.compute_s},
                       {"non_compute_s", times.non_compute_s},
                       {"idle_s", times.idle_s},
                       {"communication_s", times.communication_s},
                       {"overlap", times.overlap ? json(*times.overlap) : json()}});
  }
  json traces = json::array();
  for (const TracedRank& rank : run.ranks) {
    traces.push_back({{"rank", rank.rank},
                      {"file", rank.file.path.string()},
                      {"clock_shift_s", ns_seconds(rank.shift_ns)}});
  }
  return {{"traces", traces},
          {"accounts", accounts},
          {"waits", waits},
          {"collectives", buckets},
          {"devices", devices},
          {"fixes", fixes_json(run, account)},
          {"pieces", pieces_json(pieces_of(run, account))},
          {"answers", texts_of(findings.timed)},
          {"notes", texts_of(findings.untimed)}};
}

/// Whether a file is results.json of an account, which may stand for the traces.
bool is_baseline(const std::filesystem::path& file) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return false;
  std::string begin(100, ' ');
  open_trace(file).read(begin);
  return begin.find(kAccountFormat) != begin.npos;
}

/// Whether a file is a trace, as far as its first bytes tell.
bool is_trace(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  if (!name.ends_with(".json") && !name.ends_with(".json.gz")) return false;
  std::string begin(1 << 20, ' ');
  if (open_trace(file).read(begin) < 0) return true;  // refused when it is read
  const auto first = begin.find_first_not_of(" \t\r\n");
  const bool is_array = first != begin.npos && begin[first] == '[';
  return begin.find(is_array ? "\"ph\"" : "\"traceEvents\"") != begin.npos;
}

/// "host_7.1790857026123.pt.trace.json.gz": the worker "host_7", and the moment. Other files are
/// workers of their own.
std::pair<std::string, std::string> worker_of(const std::filesystem::path& trace) {
  const std::string name = trace.filename().string();
  const auto end = name.rfind(".pt.trace.json");
  if (end == name.npos || end == 0) return {name, ""};
  const auto dot = name.rfind('.', end - 1);
  const auto digits = name.find_first_not_of("0123456789", dot + 1);
  return dot != name.npos && digits == end
             ? std::pair(name.substr(0, dot), name.substr(dot + 1, end - dot - 1))
             : std::pair(name.substr(0, end), std::string());
}

/// The traces in a folder, by name, of each worker the newest; the files of a pattern, or a file.
std::vector<std::filesystem::path> traces_in(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return matching_files(path);
  std::map<std::string, std::filesystem::path> newest;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (!entry.is_regular_file() || !is_trace(entry.path())) continue;
    const auto [worker, moment] = worker_of(entry.path());
    std::filesystem::path& of_worker = newest[worker];
    const std::string before = worker_of(of_worker).second;
    const bool is_newer = std::pair(moment.size(), moment) > std::pair(before.size(), before);
    if (of_worker.empty() || is_newer) of_worker = entry.path();
  }
  if (newest.empty()) refuse_trace(path, "is a folder without traces", "give one with .json files");
  std::vector<std::filesystem::path> all;
  for (const auto& [worker, trace] : newest) all.push_back(trace);
  std::ranges::sort(all);
  return all;
}

/// The newest trace in the current folder.
std::filesystem::path newest_trace() {
  std::filesystem::path newest;
  for (const auto& entry : std::filesystem::directory_iterator(".")) {
    if (!entry.is_regular_file() || !is_trace(entry.path())) continue;
    const bool is_newer =
        newest.empty() || entry.last_write_time() > std::filesystem::last_write_time(newest);
    if (is_newer) newest = entry.path().lexically_normal();
  }
  if (newest.empty()) {
    fail(ExitCode::kUsage, {.what = "argument 'trace'",
                            .why = "is missing, and no trace is in this folder",
                            .remedy = "mlp_lab explain --help describes it"});
  }
  return newest;
}

/// All traces of these files, folders and patterns.
std::vector<std::filesystem::path> traces_of(std::span<const std::filesystem::path> paths) {
  std::vector<std::filesystem::path> traces;
  for (const auto& path : paths) std::ranges::move(traces_in(path), std::back_inserter(traces));
  return traces;
}

/// The pieces of a run's steps: of its traces, or of results.json of an earlier account.
StepPieces pieces_at(std::span<const std::filesystem::path> paths) {
  const std::filesystem::path& path = paths.front();
  if (is_baseline(path)) {
    constexpr std::int64_t kMaxBytes = std::int64_t{1} << 28;
    const JsonDocument results(path, kMaxBytes, "baseline",
                               "write it again: mlp_lab explain TRACE --output DIR");
    return pieces_in(results.root());
  }
  const TracedRun run = read_run(traces_of(paths));
  return pieces_of(run, account_of(run));
}

/// Compares two runs.
Explained explained_difference(const ExplainOptions& options) {
  const auto &a = options.traces[0], &b = options.traces[1];
  const std::span all_traces(options.traces);
  const StepPieces of_a = pieces_at(all_traces.first(1)), of_b = pieces_at(all_traces.subspan(1));
  TraceDifference difference = difference_of(of_a, of_b);
  Explained all{.title = "The difference of two runs, from their traces",
                .name = "difference",
                .sentences = {fmt::format("A is {}, B is {}.", on_one_line(a.string()),
                                          on_one_line(b.string()))},
                .format = kDifferenceFormat,
                .results = difference_json(of_a, of_b, difference)};
  std::ranges::move(texts_of(difference.findings), std::back_inserter(all.sentences));
  if (!is_baseline(b)) {
    all.sentences.push_back(fmt::format("To see what B does: mlp_lab explain {}", typed(b)));
  }
  all.results.update({{"a", a.string()}, {"b", b.string()}, {"answers", all.sentences}});
  all.findings = std::move(difference.findings);
  const Comparison& steps = difference.steps;
  if (options.fail_above && steps.word == Word::kTooFewStarts) {
    all.failure = "has too few steps to judge, as --fail-above asks";
  } else if (options.fail_above && steps.is_slower() && steps.ratio.low - 1 > *options.fail_above) {
    all.failure = fmt::format("a step takes at least {} longer than in '{}'",
                              percent_text(steps.ratio.low - 1), a.string());
  }
  return all;
}

Explained explained_answer(ExplainAnswer answer) {
  Explained all{.title = answer.title,
                .name = answer.name,
                .sentences = texts_of(answer.findings),
                .format = kFiguresFormat,
                .results = {{"figures", answer.figures},
                            {"answers", texts_of(answer.findings.timed)},
                            {"notes", texts_of(answer.findings.untimed)}}};
  all.findings = std::move(answer.findings);
  return all;
}

Explained explained_scaling(const ExplainOptions& options) {
  std::vector<ScalingRun> runs;
  for (const auto& path : options.traces) {
    runs.push_back(scaling_run_of(path, read_run(traces_in(path))));
  }
  return explained_answer(scaling_answer(std::move(runs), options.problem));
}

/// "Account of ddp/rank0.json and 3 more, recorded 2026-09-29 13:55 UTC".
std::string title_of(const TracedRun& run) {
  const TraceFile& first = run.ranks.front().file;
  const std::int64_t began_s = first.events.front().begin_ns / 1'000'000'000;
  constexpr std::int64_t kTimesOfDay = 1'500'000'000;  // earlier times count from something else
  return fmt::format("Account of {}{}{}", on_one_line(first.path.string()),
                     run.ranks.size() > 1 ? fmt::format(" and {} more", run.ranks.size() - 1) : "",
                     began_s > kTimesOfDay ? fmt::format(", recorded {:%Y-%m-%d %H:%M} UTC",
                                                         fmt::gmtime(std::time_t{began_s}))
                                           : "");
}

Explained explained_run(const ExplainOptions& options) {
  std::vector<std::filesystem::path> traces = traces_of(options.traces);
  if (traces.empty()) traces.push_back(newest_trace());
  const TracedRun run = read_run(traces);
  if (options.ranks > 0) {
    return explained_answer(ranks_answer(run, load_card(options.machine), options.ranks));
  }
  const RunAccount account = account_of(run);
  Findings findings =
      explained(run, account, options.machine, options.traces.empty() ? traces : options.traces);
  Explained all{.title = title_of(run), .name = "explain", .sentences = texts_of(findings)};
  if (options.traces.empty()) {
    all.sentences.insert(all.sentences.begin(), all.title + ", the newest trace here.");
  }
  const bool has_results = options.json || !options.output.empty();
  if (has_results) all.results = account_results(run, account, findings);
  all.findings = std::move(findings);
  return all;
}

bool asks_for_difference(const ExplainOptions& options) {
  const auto& traces = options.traces;
  if (options.scaling || options.ranks > 0 || traces.size() < 2) return false;
  return is_baseline(traces[0]) ||
         (traces.size() == 2 &&
          (is_baseline(traces[1]) || is_directory(traces[0]) || is_directory(traces[1])));
}

/// Refuses options of questions that are not asked.
void require_one_question(const ExplainOptions& options) {
  const auto require = [](bool holds, const char* option, const char* why, const char* remedy) {
    if (!holds) fail(ExitCode::kUsage, {.what = option, .why = why, .remedy = remedy});
  };
  require(!options.fail_above || asks_for_difference(options), "--fail-above", "compares two runs",
          "give two folders of traces, or an earlier results.json");
  const bool has_folders =
      options.traces.size() > 2 &&
      std::ranges::all_of(options.traces, [](const auto& path) { return is_directory(path); });
  require(!has_folders || options.scaling, "argument 'trace'", "is several folders",
          "compare two, add --scaling, or give the files of one job by a pattern");
  require(!options.problem || options.scaling, "--problem", "is what --scaling compares",
          "give both");
  require(!options.scaling || options.traces.size() > 1, "--scaling",
          "compares runs on several numbers of ranks", "give a folder of traces for each");
  require(!options.scaling || options.ranks == 0, "--ranks", "asks another question than --scaling",
          "give one of them");
  require(options.ranks == 0 || !options.machine.empty(), "--ranks",
          "needs the machine to simulate", "give its card with --machine");
}

}  // namespace

TraceSource open_trace(const std::filesystem::path& path) {
  const std::shared_ptr<gzFile_s> file(gzdopen(InputFile(path, "trace").release(), "rb"), gzclose);
  return {path, [file](std::span<char> out) {
            return gzread(file.get(), out.data(), static_cast<unsigned>(out.size()));
          }};
}

TracedRun read_run(const std::vector<std::filesystem::path>& paths) {
  std::vector<TraceFile> files;
  std::set<std::filesystem::path> seen;
  for (const std::filesystem::path& path : paths) {
    std::error_code ignored;  // a file that cannot be found is refused when it is read
    if (!seen.insert(std::filesystem::weakly_canonical(path, ignored)).second) {
      refuse_trace(path, "is given twice", kRankRemedy);
    }
    files.push_back(read_trace_file(open_trace(path)));
  }
  return run_from(std::move(files));
}

void explain_traces(const ExplainOptions& options) {
  if (!options.output.empty()) {
    std::vector<FileUse> inputs;
    for (const auto& path : options.traces) inputs.push_back({"mlp_lab explain", path});
    const std::vector<FileUse> outputs = {{"--output", options.output / "report.html"},
                                          {"--output", options.output / "report.md"},
                                          {"--output", options.output / "results.json"}};
    require_separate_files(outputs, inputs);
  }
  require_one_question(options);
  Explained all = options.scaling                ? explained_scaling(options)
                  : asks_for_difference(options) ? explained_difference(options)
                                                 : explained_run(options);
  nlohmann::ordered_json ordered = {{"format", all.format}};
  if (!all.results.is_null()) ordered.update(nlohmann::ordered_json(all.results));
  const std::string results =
      ordered.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  print_now(options.json ? results : text_of(all.sentences, all.findings));
  if (!options.output.empty()) {
    Page page{.title = all.title};
    page.add({}, {.plots = std::exchange(all.findings.plots, {})}, all.name);
    page.add(all.sentences, {}, all.name);
    for (FindingTable& table : all.findings.tables) {
      page.markdown += fmt::format("## {}\n\n", markdown_text(std::exchange(table.title, "")));
      page.add({}, {.tables = {table}}, all.name);
    }
    write_page(options.output, page);
    replace_file(options.output / "results.json", results);
    const std::string report = on_one_line((options.output / "report.html").string());
    if (!options.json) print_now(fmt::format("Report: {}\n", report));
  }
  if (all.failure.empty()) return;
  refuse_trace(options.traces[1], all.failure,
               "see the tables, profile six steps or more of each, or raise --fail-above");
}

}  // namespace barestep
