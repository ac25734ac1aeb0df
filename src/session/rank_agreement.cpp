#include "session/rank_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/input_file.h"
#include "core/units.h"
#include "options/options.h"

namespace barestep {
namespace {

constexpr char kEndOfValue = '\0';

void add_files(RankSettings& settings, const char* name, const std::filesystem::path& pattern) {
  if (pattern.empty()) return;
  std::vector<std::string> contents;
  for (const auto& file : matching_files(pattern)) contents.push_back(content_hash(file));
  settings.emplace_back(name, fmt::format("{}", fmt::join(contents, ", ")));
}

std::map<std::string, std::string> settings_in(const std::string& text) {
  std::map<std::string, std::string> settings;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t name_end = text.find(kEndOfValue, at);
    const std::size_t end = text.find(kEndOfValue, name_end + 1);
    settings[text.substr(at, name_end - at)] = text.substr(name_end + 1, end - name_end - 1);
    at = end + 1;
  }
  return settings;
}

/// "rank 0", "ranks 1-3 and 5".
std::string text_of_ranks(const std::vector<int>& ranks) {
  std::vector<std::string> runs;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    runs.push_back(first == last ? std::to_string(ranks[first])
                                 : fmt::format("{}-{}", ranks[first], ranks[last]));
    first = last + 1;
  }
  return fmt::format("{} {}", noun_for(std::ssize(ranks), "rank"), fmt::join(runs, ", "));
}

}  // namespace

RankSettings settings_of_data(const TrainConfig& config) {
  RankSettings settings;
  add_files(settings, "data", config.data.x);
  add_files(settings, "targets", config.data.y);
  return settings;
}

RankSettings settings_of(const TrainConfig& config) {
  RankSettings settings = settings_of_data(config);
  for (auto& shared : shared_settings(config)) settings.push_back(std::move(shared));
  return settings;
}

std::string hash_of_program() {
  try {
    return content_hash("/proc/self/exe");
  } catch (const Error&) {
    return std::string(kUnknownSetting);
  }
}

RankSettings settings_of_build(const std::string& mpi) {
  return {{"build", hash_of_program()}, {"MPI", mpi}};
}

void require_agreement(Group& ranks, const RankSettings& settings) {
  std::string mine;
  for (const auto& [name, value] : settings) {
    for (const std::string& text : {name, value}) {
      mine += text;
      mine += kEndOfValue;
    }
  }
  std::vector<std::map<std::string, std::string>> all;
  for (const std::string& text : gather_lists(ranks, mine)) all.push_back(settings_in(text));

  // In this rank's order, followed by names that only others have.
  std::vector<std::string> names;
  for (const auto& [name, value] : settings) names.push_back(name);
  for (const auto& each : all) {
    for (const auto& [name, value] : each) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  std::vector<std::string> differences;
  for (const std::string& name : names) {
    std::map<std::string, std::vector<int>> ranks_of;
    std::vector<std::string> values;  // in rank order
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const auto found = all[rank].find(name);
      const std::string value = found == all[rank].end() ? "not there" : found->second;
      if (value == kUnknownSetting) continue;
      if (ranks_of[value].empty()) values.push_back(value);
      ranks_of[value].push_back(static_cast<int>(rank));
    }
    if (values.size() <= 1) continue;
    std::vector<std::string> parts;
    for (const std::string& value : values) {
      parts.push_back(fmt::format("{} on {}", value, text_of_ranks(ranks_of[value])));
    }
    differences.push_back(fmt::format("{} is {}", name, fmt::join(parts, " and ")));
  }
  if (differences.empty()) return;
  fail(ExitCode::kConfiguration,
       {"ranks differ", "", fmt::format("{}", fmt::join(differences, ", ")),
        "give all ranks the same build, options and files"});
}

}  // namespace barestep
