// From the arguments of a program to a TrainConfig.
#pragma once

#include <string>
#include <vector>

#include "core/config.h"

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

}  // namespace barestep
