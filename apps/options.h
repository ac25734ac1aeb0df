// The options of the trainers: one table, from which the command line, the config file and --help
// are made. An option that is not in it does not exist; one that is in it is parsed and applied.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "option_values.h"

namespace barestep {

/// How a config file writes the value of an option.
enum class JsonKind { kBoolean, kNumber, kString, kNumbers, kNumberOrString, kNumberOrNumbers };

struct Option {
  std::string_view name;      // without the dashes; also the key of a config file
  std::string_view group;     // of --help
  std::string_view argument;  // what --help calls its value; empty for a flag
  JsonKind json;
  std::string help;  // with default and range
  std::function<void(const Given&, TrainConfig&)> apply;
  // Given on the command line, the option also takes the place of these in the config file.
  std::vector<std::string_view> replaces{};
  std::vector<std::string_view> programs{};  // that have it; empty: all
};

/// The options of a program (mlp_single, mlp_dp, mlp_ddp), in the order of --help.
std::span<const Option> options_of(std::string_view program);

std::vector<std::string_view> names_of_options(std::string_view program);

}  // namespace barestep
