// A config file: a JSON object whose keys are option names without dashes.
//
//   {"layers": [784, 512, 10], "no-last-relu": true, "data": "idx:images,labels"}
//
// Numbers are JSON numbers, --layers and --betas arrays of numbers, flags true or false, the rest
// strings. File names are relative to where the program runs. A byte order mark is skipped.
#pragma once

#include <filesystem>
#include <map>
#include <string_view>

#include "core/config.h"
#include "options/option_values.h"

namespace barestep {

/// The options of a program that a file gives, by name. A flag that is false is as good as not
/// there. Throws Error: kNoInput if the file cannot be read, kConfiguration, with file:line:column,
/// for what is in it. The values themselves are not looked at.
std::map<std::string_view, Given> read_config_file(TrainerKind trainer,
                                                   const std::filesystem::path& path);

}  // namespace barestep
