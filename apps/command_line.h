// From the arguments of a program to a TrainConfig.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "options/option_values.h"

namespace barestep {

struct CommandLine {
  TrainConfig config;
  std::string answer;  // to --help or --version: to be printed, and nothing else to be done
  std::string note;    // which keys of the config file the command line overrides; may be empty
};

/// Reads `arguments` (without the program's name) and the --config file they name; the command line
/// wins over the file. Throws Error: kUsage for the command line, read_config_file()'s for the
/// file. Values are in their ranges; whether they fit together is for validate().
CommandLine parse_command_line(TrainerKind trainer, const std::vector<std::string>& arguments);

/// Reads a config file: a JSON object whose keys are option names without dashes.
///
///   {"layers": [784, 512, 10], "no-last-relu": true, "data": "idx:images,labels"}
///
/// Numbers are JSON numbers, --layers and --betas arrays of numbers, flags true or false, the rest
/// strings. File names are relative to where the program runs. A byte order mark is skipped.
///
/// Returns the options of a program that the file gives, by name. A flag that is false is as good
/// as not there. Throws Error: kNoInput if the file cannot be read, kConfiguration, with
/// file:line:column, for what is in it. The values themselves are not looked at.
std::map<std::string_view, RawValue> read_config_file(TrainerKind trainer,
                                                      const std::filesystem::path& path);

}  // namespace barestep
