// mlp_lab explain: traces from files, and the report in files.
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>

#include "core/error.h"
#include "core/input_file.h"
#include "core/output_file.h"
#include "lab/commands.h"
#include "lab/explain/explain_report.h"
#include "lab/report/page.h"
#include "session/outputs.h"
#include "session/run_program.h"

namespace barestep {
namespace {

/// By part and name.
nlohmann::json named_json(const TracedRank& rank, const TracedAccount& account) {
  nlohmann::json named = nlohmann::json::object();
  for (const auto& [time, ns] : account.named_ns) {
    nlohmann::json& seconds = named[std::string(name_of(time.part))][innermost_name(rank, time)];
    seconds = ns_seconds(ns) + (seconds.is_null() ? 0 : seconds.get<double>());
  }
  return named;
}

nlohmann::json account_json(const TracedRank& rank, const TracedAccount& account) {
  nlohmann::json parts = nlohmann::json::object();
  for (const Part part : kValuesOf<Part>) {
    parts[std::string(name_of(part))] = ns_seconds(account.part_ns[part]);
  }
  return {{"rank", rank.rank},
          {"step", account.number},
          {"wall_s", ns_seconds(account.wall_ns)},
          {"parts_s", parts},
          {"named_s", named_json(rank, account)},
          {"waiting_s", ns_seconds(account.waiting_ns)},
          {"moving_s", ns_seconds(account.moving_ns())},
          {"hidden_communication_s", ns_seconds(account.hidden_ns)}};
}

/// Times in seconds.
std::string explain_json(const TracedRun& run, const RunAccount& account,
                         const Findings& findings) {
  using nlohmann::json;
  json accounts = json::array(), buckets = json::array(), waits = json::array();
  for (const TracedAccount& each : account.accounts) {
    accounts.push_back(account_json(run.ranks[each.rank], each));
  }
  for (const BucketAccount& each : account.buckets) {
    buckets.push_back({{"collective", each.name},
                       {"bytes", each.bytes},
                       {"ranks", each.ranks},
                       {"count", each.count},
                       {"moving_s", ns_seconds(each.moving_ns)},
                       {"exposed_s", ns_seconds(each.exposed_ns)},
                       {"waiting_s", ns_seconds(each.waiting_ns)},
                       {"bus_bytes_per_s", each.bus_bytes_per_s()}});
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
  for (const DeviceBreakdown& each : breakdowns_of(run)) {
    const Breakdown& times = each.breakdown;
    devices.push_back({{"rank", run.ranks[each.rank].rank},
                       {"device", each.device},
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
  const json all = {{"traces", traces},
                    {"accounts", accounts},
                    {"waits", waits},
                    {"collectives", buckets},
                    {"devices", devices},
                    {"answers", texts_of(findings.timed)},
                    {"notes", texts_of(findings.untimed)}};
  return all.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

/// The traces in a folder, by name; a file itself.
std::vector<std::filesystem::path> traces_in(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::filesystem::path> all;
  for (const auto& each : std::filesystem::directory_iterator(path)) {
    const std::string name = each.path().filename().string();
    if (name.ends_with(".json") || name.ends_with(".json.gz")) all.push_back(each.path());
  }
  if (all.empty()) refuse_trace(path, "is a folder without traces", "give one with .json files");
  std::ranges::sort(all);
  return all;
}

/// Compares the runs of two folders.
void explain_difference(const ExplainOptions& options) {
  const auto &a = options.traces[0], &b = options.traces[1];
  const TraceDifference difference = difference_of(read_run(traces_in(a)), read_run(traces_in(b)));
  std::vector<std::string> sentences = {
      fmt::format("A is {}, B is {}.", on_one_line(a.string()), on_one_line(b.string()))};
  std::ranges::move(texts_of(difference.findings), std::back_inserter(sentences));
  print_now(text_of(sentences, difference.findings));
  if (!options.output.empty()) {
    Page page{.title = "The difference of two runs, from their traces"};
    page.add(sentences, difference.findings, "difference");
    write_page(options.output, page);
  }
  const double more = difference.steps.ratio.median - 1;
  if (!options.fail_above || more <= *options.fail_above) return;
  refuse_trace(b,
               fmt::format("a step takes {} longer than in '{}'", percent_text(more), a.string()),
               "see the tables, or raise --fail-above");
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
  const bool is_difference =
      options.traces.size() == 2 && std::ranges::all_of(options.traces, [](const auto& path) {
        return std::filesystem::is_directory(path);
      });
  if (is_difference) return explain_difference(options);
  if (options.fail_above) {
    fail(ExitCode::kUsage, {.what = "--fail-above",
                            .why = "compares the runs of two folders",
                            .remedy = "give two folders of traces"});
  }
  std::vector<std::filesystem::path> traces;
  for (const auto& path : options.traces)
    std::ranges::move(traces_in(path), std::back_inserter(traces));
  const TracedRun run = read_run(traces);
  const RunAccount account = account_of(run);
  const Findings findings = explained(run, account, options.machine);
  const std::vector<std::string> sentences = texts_of(findings);
  print_now(text_of(sentences, findings));
  if (options.output.empty()) return;
  Page page{.title = "Account of a run, from its traces"};
  page.add(sentences, findings, "explain");
  write_page(options.output, page);
  replace_file(options.output / "results.json", explain_json(run, account, findings));
  print_now(fmt::format("Report: {}\n", on_one_line((options.output / "report.html").string())));
}

}  // namespace barestep
