// The command line of a program that has commands, as mlp_lab: what CLI11 finds wrong is said in
// the words of the trainers.
#pragma once

#include <CLI/CLI.hpp>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"

namespace barestep {

/// The option takes one of `names`, which must outlive it.
CLI::Option* accept_choices(CLI::Option* option, std::span<const std::string_view> names);

/// The option takes whole numbers of `range`.
CLI::Option* accept_whole_numbers(CLI::Option* option, Range range);

/// Parses `arguments` (without the program's name) and runs the command they name. Throws
/// Error(kUsage), what the command throws, and CLI::Success for --help and --version.
void run_command(CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace barestep
