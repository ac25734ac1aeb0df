#include "lab/start.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace barestep {
namespace {

using nlohmann::json;

[[noreturn]] void refuse_records(const std::string& name, const std::string& why) {
  fail(ExitCode::kBadData, {.what = "records of a run",
                            .value = name,
                            .why = why,
                            .remedy = "remove the file and run the study again"});
}

/// Calls visit(record) for each line of a `--metrics` file.
template <class Visit>
void for_records(std::string_view lines, const std::string& name, const Visit& visit) {
  try {
    while (!lines.empty()) {
      const std::size_t end = std::min(lines.find('\n'), lines.size());
      visit(json::parse(lines.substr(0, end)));
      lines.remove_prefix(std::min(end + 1, lines.size()));
    }
  } catch (const std::exception& error) {
    refuse_records(name, error.what());
  }
}

bool is_of_step(const json& record) {
  return !record.contains("monitor") && !record.contains("monitor_summary");
}

void append_record(const json& record, RankSteps& steps) {
  steps.step_s.push_back(record.at("step_time_s").get<double>());
  steps.loss.push_back(record.at("loss").get<double>());
  steps.queued_s.push_back(record.at("queued_s").get<double>());
  for (const auto& [phase, seconds] : record.at("phases_s").items()) {
    steps.phase_s[phase].push_back(seconds.get<double>());
  }
}

json json_of_rank(const RankSteps& rank) {
  return {{"step_s", rank.step_s},
          {"loss", rank.loss},
          {"queued_s", rank.queued_s},
          {"phase_s", rank.phase_s}};
}

json json_of_watched(const Watched& watched) {
  json all = {{"source", watched.source}, {"gauges", watched.gauges}, {"marks", watched.marks}};
  if (watched.energy_j_per_sample) all["energy_j_per_sample"] = *watched.energy_j_per_sample;
  return all;
}

Watched watched_of_json(const json& from) {
  Watched watched{
      .source = from.at("source"), .gauges = from.at("gauges"), .marks = from.at("marks")};
  if (from.contains("energy_j_per_sample")) {
    watched.energy_j_per_sample = from.at("energy_j_per_sample").get<double>();
  }
  return watched;
}

RankSteps rank_of_json(const json& from) {
  RankSteps rank{.step_s = from.at("step_s"),
                 .loss = from.at("loss"),
                 .queued_s = from.at("queued_s"),
                 .phase_s = from.at("phase_s")};
  if (rank.step_s.empty()) throw std::invalid_argument("a rank has no steps");
  for (const auto& [phase, seconds] : rank.phase_s) {
    if (seconds.size() != rank.step_s.size()) throw std::invalid_argument("steps are missing");
  }
  return rank;
}

}  // namespace

std::vector<RankSteps> parse_metrics(std::string_view lines, const std::string& name) {
  std::vector<RankSteps> ranks;
  for_records(lines, name, [&](const json& record) {
    if (!is_of_step(record)) return;
    const auto rank = record.at("rank").get<std::size_t>();
    if (rank >= ranks.size()) ranks.resize(rank + 1);
    append_record(record, ranks[rank]);
  });
  if (ranks.empty()) refuse_records(name, "there are none");
  return ranks;
}

std::vector<Watched> parse_monitor(std::string_view lines, const std::string& name) {
  std::vector<Watched> sources;
  const auto source_of = [&](const std::string& source) -> Watched& {
    const auto found = std::ranges::find(sources, source, &Watched::source);
    return found != sources.end() ? *found : sources.emplace_back(Watched{.source = source});
  };
  bool is_warm = false;
  for_records(lines, name, [&](const json& record) {
    if (is_of_step(record)) {
      is_warm = is_warm || !record.at("warmup").get<bool>();
    } else if (record.contains("monitor_summary")) {
      Watched& watched = source_of(record.at("monitor_summary"));
      const json& energy = record.at("energy_j_per_sample");
      if (energy.is_number()) watched.energy_j_per_sample = energy.get<double>();
      watched.marks = record.at("marks").get<std::vector<std::string>>();
    } else if (is_warm) {
      Watched& watched = source_of(record.at("monitor"));
      for (const auto& [gauge, value] : record.items()) {
        const bool is_gauge = gauge != "rank" && gauge != "seconds" && value.is_number();
        if (is_gauge) watched.gauges[gauge].push_back(value.get<double>());
      }
    }
  });
  return sources;
}

std::string library_of_metrics(std::string_view lines, const std::string& name) {
  std::string library;
  for_records(lines, name, [&](const json& record) { library = record.value("library", library); });
  return library;
}

std::string json_of(const Start& start) {
  json ranks = json::array();
  for (const RankSteps& rank : start.ranks) ranks.push_back(json_of_rank(rank));
  json ops = json::array();
  for (const OpTime& op : start.ops) {
    ops.push_back(
        {{"name", op.name}, {"phase", op.phase}, {"layer", op.layer}, {"seconds", op.seconds}});
  }
  json watched = json::array();
  for (const Watched& each : start.watched) watched.push_back(json_of_watched(each));
  return json{{"command", start.command},           {"wall_s", start.wall_s},
              {"others_share", start.others_share}, {"attempts", start.attempts},
              {"weights_hash", start.weights_hash}, {"library", start.library},
              {"ranks", std::move(ranks)},          {"ops", std::move(ops)},
              {"watched", std::move(watched)}}
      .dump();
}

Start parse_start(std::string_view text, const std::string& name) {
  try {
    const json from = json::parse(text);
    Start start{.command = from.at("command"),
                .wall_s = from.at("wall_s"),
                .others_share = from.at("others_share"),
                .attempts = from.at("attempts"),
                .weights_hash = from.at("weights_hash"),
                .library = from.value("library", "")};
    for (const json& rank : from.at("ranks")) start.ranks.push_back(rank_of_json(rank));
    for (const json& op : from.at("ops")) {
      start.ops.push_back({.name = op.at("name"),
                           .phase = op.at("phase"),
                           .layer = op.at("layer"),
                           .seconds = op.at("seconds")});
    }
    for (const json& watched : from.at("watched")) {
      start.watched.push_back(watched_of_json(watched));
    }
    if (start.ranks.empty()) refuse_records(name, "there are no ranks");
    return start;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    refuse_records(name, error.what());
  }
}

}  // namespace barestep
