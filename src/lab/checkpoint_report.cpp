// Describes a checkpoint file in words, for people who want to know which run it belongs to.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "core/error.h"
#include "core/text_table.h"
#include "core/units.h"
#include "data/checkpoint_file.h"
#include "lab/commands.h"
#include "session/run_program.h"

namespace barestep {
namespace {

using StateDocument = nlohmann::ordered_json;

/// A group of tensors of one kind: the weights, or one part of the optimizer's state.
struct TensorGroup {
  std::string name;
  std::string dtype;
  std::int64_t tensors = 0, numbers = 0, bytes = 0;
  bool is_whole = true;
};

/// Maps "optimizer.exp_avg.net.0.weight" to "optimizer.exp_avg", and "net.0.weight" to "net". The
/// parameters of transformer blocks begin with "layers".
std::string group_of(const std::string& name) {
  for (std::string root : {"net", "layers"}) {
    if (name.starts_with(root + ".")) return root;
    if (const std::size_t at = name.find("." + root + "."); at != std::string::npos) {
      return name.substr(0, at);
    }
  }
  return name;
}

std::vector<TensorGroup> groups_of(const CheckpointReader& file, std::string& damaged) {
  std::vector<TensorGroup> groups;
  for (const SafetensorsEntry& entry : file.tensors()) {
    const std::string name = group_of(entry.name);
    auto group = std::ranges::find(groups, name, &TensorGroup::name);
    if (group == groups.end()) {
      groups.push_back({.name = name, .dtype = entry.dtype});
      group = groups.end() - 1;
    }
    std::int64_t numbers = 1;
    for (const std::int64_t extent : entry.shape) numbers *= extent;
    ++group->tensors;
    group->numbers += numbers;
    group->bytes += entry.bytes();
    if (file.is_whole(entry)) continue;
    group->is_whole = false;
    if (damaged.empty()) damaged = entry.name;
  }
  return groups;
}

/// The settings that the run was given and that are not "none".
std::string settings_text(const StateDocument& settings) {
  TextTable table({"", ""});
  for (const auto& [name, value] : settings.items()) {
    const auto text = value.get<std::string>();
    if (text != "not given" && text != "none") table.add_row({name, text});
  }
  return table.text(4);
}

std::string run_text(const StateDocument& state) {
  TextTable table({"", ""});
  const std::int64_t steps = state.at("steps"), updates = state.at("updates");
  table.add_row({"written by", fmt::format("{} {}", state.at("program").get<std::string>(),
                                           state.at("version").get<std::string>())});
  table.add_row({"steps done", updates == steps ? grouped(steps)
                                                : fmt::format("{}, {} of them updates",
                                                              grouped(steps), grouped(updates))});
  if (const std::int64_t epoch = state.at("epoch"); epoch > 0 || state.at("evaluated")) {
    const std::int64_t batch = state.at("batch_of_epoch");
    table.add_row({"position", batch == 0 ? fmt::format("after {}", counted(epoch, "epoch"))
                                          : fmt::format("in epoch {}, after {} of it", epoch + 1,
                                                        counted(batch, "batch"))});
  }
  if (const StateDocument& best = state.at("best_test_loss"); !best.is_null()) {
    table.add_row({"best test loss", fmt::format("{:.6g}", best.get<double>())});
  }
  return table.text(4);
}

}  // namespace

void print_checkpoint(const std::filesystem::path& path) {
  const CheckpointReader file(path);
  const StateDocument state = StateDocument::parse(file.state(), nullptr, false);
  std::string text, damaged;
  try {
    text = fmt::format(
        "{}\n  The run\n{}\n  What decides its numbers\n{}\n  What decides their rounding\n{}",
        on_one_line(path.string()), run_text(state), settings_text(state.at("settings")),
        settings_text(state.at("rounding")));
  } catch (const StateDocument::exception&) {
    fail(ExitCode::kBadData,
         {"checkpoint", path.string(), "its state is not that of a training run of barestep",
          "name a checkpoint that a trainer wrote"});
  }
  TextTable table({"tensors", ">count", "type", ">numbers", ">size", "checksums"});
  std::int64_t bytes = 0;
  for (const TensorGroup& group : groups_of(file, damaged)) {
    table.add_row({group.name, grouped(group.tensors), group.dtype, grouped(group.numbers),
                   human_bytes(group.bytes), group.is_whole ? "right" : "WRONG"});
    bytes += group.bytes;
  }
  print_now(fmt::format("{}\n  {} of tensors\n{}", text, human_bytes(bytes), table.text(4)));
  if (damaged.empty()) return;
  fail(ExitCode::kBadData,
       {"checkpoint", path.string(), fmt::format("tensor '{}' is not what was written", damaged),
        "resume from another one"});
}

}  // namespace barestep
