#include "lab/study/start.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/input_file.h"
#include "core/json_document.h"
#include "core/units.h"
#include "options/option_values.h"

namespace barestep {
namespace {

using nlohmann::json;

constexpr const char* kHash = "hash";
constexpr const char* kRunRecords = "records of a run";
constexpr const char* kRecordsRemedy = "remove the file and run the study again";

// Beyond the figures of any run.
constexpr double kMaxRunSeconds = 1e9;
constexpr double kMaxFigure = 1e300;
constexpr std::int64_t kMaxRunRanks = 1 << 20;

[[noreturn]] void refuse_records(const std::string& name, const std::string& why) {
  fail(ExitCode::kBadData, {kRunRecords, name, why, kRecordsRemedy});
}

/// Calls visit(record) for each line of a `--metrics` file.
template <class Visit>
void for_records(std::string_view lines, const std::string& name, const Visit& visit) {
  for (int number = 1; !lines.empty(); ++number) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    const JsonDocument record(lines.substr(0, end), {.what = kRunRecords,
                                                     .name = fmt::format("{}:{}", name, number),
                                                     .remedy = kRecordsRemedy});
    visit(record.root());
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
}

double seconds_of_record(const JsonValue& from) {
  return from.number(0, kMaxRunSeconds);
}

void append_record(const JsonValue& record, RankSteps& steps) {
  steps.step_s.push_back(seconds_of_record(record.at("step_time_s")));
  if (record.has("samples")) {
    steps.samples.push_back(record.at("samples").number(1, kMaxFigure));
  }
  steps.loss.push_back(record.at("loss").number(-kMaxFigure, kMaxFigure));
  steps.queued_s.push_back(seconds_of_record(record.at("queued_s")));
  if (record.has("scale")) {
    steps.scale.push_back(record.at("scale").number(0, kMaxFigure));
    steps.skipped += record.at("skipped").boolean() ? 1 : 0;
  }
  for (const auto& [phase, seconds] : record.at("phases_s").members()) {
    steps.phase_s[phase].push_back(seconds_of_record(seconds));
  }
}

std::string configuration_of(const JsonValue& from) {
  const JsonValue configuration = from.at("configuration");
  std::ignore = configuration.members();  // checks that it is an object
  return configuration.json();
}

json json_of_rank(const RankSteps& rank) {
  json all = {{"step_s", rank.step_s},
              {"samples", rank.samples},
              {"loss", rank.loss},
              {"queued_s", rank.queued_s},
              {"phase_s", rank.phase_s}};
  if (!rank.scale.empty()) {
    all["scale"] = rank.scale;
    all["skipped"] = rank.skipped;
  }
  return all;
}

/// As a record of the monitor has it.
json json_of_watched(const Watched& watched) {
  json all = {{"monitor_summary", watched.source},
              {"gauges", json::object()},
              {"energy_j_per_sample", nullptr},
              {"marks", watched.marks}};
  for (const auto& [gauge, level] : watched.gauges) {
    all["gauges"][gauge] = {level.mean, level.least, level.most};
  }
  if (watched.energy_j_per_sample) all["energy_j_per_sample"] = *watched.energy_j_per_sample;
  return all;
}

Watched watched_of_json(const JsonValue& from) {
  const auto figure = [](const JsonValue& of) { return of.number(-kMaxFigure, kMaxFigure); };
  Watched watched{.source = from.at("monitor_summary").text(), .marks = from.at("marks").texts()};
  for (const auto& [gauge, values] : from.at("gauges").members()) {
    const std::vector<JsonValue> level = values.items(3);
    watched.gauges[gauge] = {figure(level[0]), figure(level[1]), figure(level[2])};
  }
  const JsonValue energy = from.at("energy_j_per_sample");
  if (energy.is_number()) watched.energy_j_per_sample = figure(energy);
  return watched;
}

RankSteps rank_of_json(const JsonValue& from) {
  RankSteps rank{.step_s = from.at("step_s").numbers(0, kMaxRunSeconds)};
  const std::size_t steps = rank.step_s.size();
  if (steps == 0) from.at("step_s").refuse("is empty");
  const auto of_each_step = [steps](const JsonValue& values, double min, double max) {
    std::vector<double> numbers = values.numbers(min, max);
    if (numbers.size() != steps) {
      values.refuse(fmt::format("has {} numbers for {} steps", numbers.size(), steps));
    }
    return numbers;
  };
  if (!from.at("samples").items().empty()) {
    rank.samples = of_each_step(from.at("samples"), 1, kMaxFigure);
  }
  rank.loss = of_each_step(from.at("loss"), -kMaxFigure, kMaxFigure);
  rank.queued_s = of_each_step(from.at("queued_s"), 0, kMaxRunSeconds);
  if (from.has("scale")) {
    rank.scale = of_each_step(from.at("scale"), 0, kMaxFigure);
    rank.skipped = from.at("skipped").whole(0, static_cast<std::int64_t>(steps));
  }
  for (const auto& [phase, values] : from.at("phase_s").members()) {
    rank.phase_s[phase] = of_each_step(values, -kMaxRunSeconds, kMaxRunSeconds);
  }
  return rank;
}

LostTime lost_of_json(const JsonValue& from) {
  return {.wall_s = seconds_of_record(from.at("wall_s")),
          .waited_s = seconds_of_record(from.at("waited_s")),
          .ready_s = seconds_of_record(from.at("ready_s")),
          .own_ran_s = seconds_of_record(from.at("own_ran_s")),
          .all_ran_s = seconds_of_record(from.at("all_ran_s")),
          .stolen_s = seconds_of_record(from.at("stolen_s")),
          .busy_threads = from.at("busy_threads").number(0, kMaxRunRanks)};
}

}  // namespace

RunRecords parse_metrics(std::string_view lines, const std::string& name) {
  RunRecords found;
  Start& start = found.start;
  for_records(lines, name, [&](const JsonValue& record) {
    if (record.has("library")) start.library = record.at("library").text();
    if (record.has("configuration")) {
      start.configuration = configuration_of(record);
    } else if (record.has("lost_time")) {
      found.lost.push_back(lost_of_json(record.at("lost_time")));
    } else if (record.has("monitor_summary")) {
      start.watched.push_back(watched_of_json(record));
    } else if (!record.has("monitor")) {
      const auto rank = static_cast<std::size_t>(record.at("rank").whole(0, kMaxRunRanks));
      if (rank >= start.ranks.size()) start.ranks.resize(rank + 1);
      append_record(record, start.ranks[rank]);
    }
  });
  if (start.ranks.empty()) refuse_records(name, "there are none");
  return found;
}

std::string json_of(const Start& start) {
  json ranks = json::array();
  for (const RankSteps& rank : start.ranks) ranks.push_back(json_of_rank(rank));
  json ops = json::array();
  for (const OpTime& op : start.ops) {
    ops.push_back(
        {{"name", op.name}, {"phase", op.phase}, {"block", op.block}, {"seconds", op.seconds}});
    if (op.device > 0) ops.back()["device"] = op.device;
  }
  json watched = json::array();
  for (const Watched& entry : start.watched) watched.push_back(json_of_watched(entry));
  json all = {{"command", start.command},           {"wall_s", start.wall_s},
              {"lost_share", start.lost_share},     {"attempts", start.attempts},
              {"weights_hash", start.weights_hash}, {"library", start.library},
              {"ranks", std::move(ranks)},          {"ops", std::move(ops)},
              {"watched", std::move(watched)}};
  if (!start.governor.empty()) all["governor"] = start.governor;
  if (start.core_distance_s > 0) all["core_distance_s"] = start.core_distance_s;
  if (!start.configuration.empty()) all["configuration"] = json::parse(start.configuration);
  all[kHash] = hash_of_bytes(all.dump());
  return all.dump();
}

Start parse_start(std::string_view text, const std::string& name) {
  constexpr std::int64_t kMaxAttempts = 1000;
  const JsonDocument document(text, {.what = kRunRecords, .name = name, .remedy = kRecordsRemedy});
  const JsonValue from = document.root();
  Start start{
      .command = from.at("command").text(),
      .wall_s = from.at("wall_s").number(0, kMaxRunSeconds),
      .lost_share = from.at("lost_share").number(0, 1),
      .attempts = static_cast<int>(from.at("attempts").whole(1, kMaxAttempts)),
      .governor = from.has("governor") ? from.at("governor").text() : "",
      .core_distance_s = from.has("core_distance_s") ? from.at("core_distance_s").number(0, 1) : 0,
      .weights_hash = from.at("weights_hash").text(),
      .library = from.at("library").text()};
  for (const JsonValue& rank : from.at("ranks").items()) start.ranks.push_back(rank_of_json(rank));
  for (const JsonValue& op : from.at("ops").items()) {
    start.ops.push_back({.name = op.at("name").text(),
                         .phase = op.at("phase").text(),
                         .block = op.at("block").text(),
                         .seconds = op.at("seconds").number(0, kMaxRunSeconds),
                         .device = op.has("device")
                                       ? static_cast<int>(op.at("device").whole(0, kMaxRunRanks))
                                       : 0});
  }
  for (const JsonValue& watched : from.at("watched").items()) {
    start.watched.push_back(watched_of_json(watched));
  }
  if (start.ranks.empty()) from.at("ranks").refuse("is empty");
  if (from.has("configuration")) start.configuration = configuration_of(from);
  if (from.has(kHash)) {
    start.hash = from.at(kHash).text();
    json all = json::parse(text);
    all.erase(kHash);
    start.is_altered = start.hash != hash_of_bytes(all.dump());
  }
  document.require_known();
  return start;
}

namespace {

/// The number behind a label in a line, in seconds if it is followed by ms; nothing without one.
std::optional<double> labeled_number(std::string_view line, std::string_view label) {
  const std::size_t at = line.find(label);
  const std::size_t digit =
      at == std::string_view::npos ? at : line.find_first_not_of(" :=", at + label.size());
  double number = 0;
  if (digit == std::string_view::npos) return std::nullopt;
  const std::string_view rest = line.substr(digit);
  const auto [end, error] = read_real(rest, number);
  if (error != std::errc{}) return std::nullopt;
  const std::string_view unit = rest.substr(static_cast<std::size_t>(end - rest.data()));
  return unit.starts_with("ms") || unit.starts_with(" ms") ? 1e-3 * number : number;
}

}  // namespace

std::vector<Start> starts_of_log(std::string_view log, const std::string& name) {
  std::vector<Start> starts;
  double last = 0;
  std::size_t line_number = 0;
  for (const std::string_view line : split(log, "\n")) {
    ++line_number;
    if (!line.starts_with("Step ")) continue;
    const auto number = labeled_number(line, "Step "), seconds = labeled_number(line, "Step time");
    if (!number || !seconds || !(*seconds > 0 && *seconds < kMaxRunSeconds)) {
      fail(ExitCode::kBadData,
           {"log", fmt::format("{}:{}", name, line_number), "has no time of a step",
            "print 'Step 00 | Step time: 0.1234s | Loss: 1.0369'"});
    }
    if (starts.empty() || *number <= last) {
      starts.push_back({.command = std::filesystem::path(name).filename().string(),
                        .library = kLogged,
                        .ranks = {RankSteps{}}});
    }
    last = *number;
    RankSteps& steps = starts.back().ranks.front();
    steps.step_s.push_back(*seconds);
    steps.loss.push_back(labeled_number(line, "Loss").value_or(0));
    steps.queued_s.push_back(0);
    const auto samples_per_s = labeled_number(line, "Throughput");
    if (samples_per_s) steps.samples.push_back(std::max(*samples_per_s * *seconds, 1.0));
    starts.back().wall_s += *seconds;
  }
  for (Start& start : starts) {
    RankSteps& steps = start.ranks.front();
    if (steps.samples.size() != steps.step_s.size()) steps.samples.clear();
  }
  if (!starts.empty()) return starts;
  fail(ExitCode::kBadData, {"log", name, "has no line of a step",
                            "print 'Step 00 | Step time: 0.1234s | Loss: 1.0369'"});
}

std::vector<OpTime> op_times_of_trace(std::string_view trace, const std::string& name) {
  constexpr double kMaxUs = 1e12;
  std::map<std::tuple<std::string, std::string, std::string>, double> us;
  int steps = 0;
  const JsonDocument document(trace,
                              {.what = "trace", .name = name, .remedy = "run the study again"});
  const JsonValue events = document.root().at("traceEvents");
  for (const JsonValue& event : events.items()) {
    const std::string category = event.has("cat") ? event.at("cat").text() : "";
    steps += category == "user_annotation" && event.at("name").text().starts_with("ProfilerStep#");
    if (category != "kernel" && !category.starts_with("gpu_mem")) continue;
    const JsonValue facts = event.at("args");
    us[{event.at("name").text(), facts.at("phase").text(), facts.at("block").text()}] +=
        event.at("dur").number(0, kMaxUs);
  }
  if (steps == 0) events.refuse("show no profiled step");
  std::vector<OpTime> times;
  for (const auto& [key, sum] : us) {
    times.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), 1e-6 * sum / steps});
  }
  std::ranges::sort(times, std::ranges::greater{}, &OpTime::seconds);
  return times;
}

}  // namespace barestep
