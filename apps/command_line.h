// Turns a program's arguments into a TrainConfig.
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
  std::string answer;  // output of --help or --version: print it and exit
  std::string note;    // config file keys that the command line overrides; may be empty
};

/// Reads `arguments` of the program with this scheme (without the program's name) and the --config
/// file they name; the command line overrides the file. Throws Error: kUsage for the command line,
/// and what read_config_file() throws for the file. Each value is in its range; validate() checks
/// whether they fit together.
CommandLine parse_command_line(SchemeKind scheme, const std::vector<std::string>& arguments);

/// Reads a config file: a JSON object whose keys are option names without dashes.
///
///   {"layers": [784, 512, 10], "no-last-relu": true, "data": "idx:images,labels"}
///
/// Numbers are JSON numbers, --layers and --betas are arrays of numbers, flags are true or false,
/// and the others are strings. File names are relative to the program's working directory. A byte
/// order mark is skipped.
///
/// Returns the program's options that the file sets, by name. A flag set to false counts as absent.
/// Throws Error: kNoInput if the file cannot be read; kConfiguration, with file:line:column, for
/// errors in its content. Does not check the values themselves.
std::map<std::string_view, RawValue> read_config_file(SchemeKind scheme,
                                                      const std::filesystem::path& path);

}  // namespace barestep
