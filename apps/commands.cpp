#include "commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "options/option_values.h"
#include "usage.h"

namespace barestep {
namespace {

std::vector<std::string_view> names_of_commands(const CLI::App& app) {
  std::vector<std::string_view> names;
  // Those without a group are not for users.
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  return names;
}

/// Without dashes.
std::vector<std::string_view> option_names_of(const CLI::App& command) {
  std::vector<std::string_view> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

/// What CLI11 would take: the next option for a value, "maybe" for a flag.
void require_sound_values(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (!option->nonpositional()) continue;
    const std::string name = option->get_name();
    const bool is_flag = option->get_items_expected_max() == 0;
    option->check([name, is_flag](const std::string& text) {
      if (is_flag) no_value({.where = name, .text = text});
      if (text.starts_with("--")) refuse_missing_value(name);
      return std::string();
    });
  }
}

[[noreturn]] void refuse_command_line(const CLI::App& app, const CLI::ParseError& error,
                                      const std::vector<std::string>& arguments) {
  const std::vector<CLI::App*> given = app.get_subcommands();
  const CLI::App& command = given.empty() ? app : *given.front();
  const std::string name =
      given.empty() ? app.get_name() : fmt::format("{} {}", app.get_name(), command.get_name());
  const std::vector<std::string> rest = app.remaining(true);
  if (!rest.empty() && given.empty() && !rest.front().starts_with('-')) {
    refuse_usage("unknown command", rest.front(), fmt::format("{} has no such command", name),
                 did_you_mean(rest.front(), names_of_commands(app), false));
  }
  if (!rest.empty()) refuse_unknown_argument(name, rest.front(), option_names_of(command));
  if (given.empty()) refuse_usage("command", "", "is missing", name + " --help lists all");
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_required() && option->count() == 0) {
      refuse_usage(option->nonpositional() ? "option" : "argument", option->get_name(),
                   "is missing", fmt::format("{} --help describes it", name));
    }
    if (option->count() > 1 && option->get_items_expected_max() == 1) {
      refuse_repeated(option->get_name());
    }
  }
  // Only the last option can run out of arguments.
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    refuse_missing_value(arguments.back());
  }
  refuse_usage("command line", "", error.what(), fmt::format("see {} --help", name));
}

}  // namespace

CLI::Option* accept_choices(CLI::Option* option, std::span<const std::string_view> names) {
  const auto judge = [name = option->get_name(), names](const std::string& text) {
    choice({.where = name, .text = text}, names);
    return std::string();
  };
  return option->check(judge, fmt::format("{{{}}}", fmt::join(names, ",")));
}

CLI::Option* accept_whole_numbers(CLI::Option* option, Range range) {
  const auto judge = [name = option->get_name(), range](const std::string& text) {
    whole_number({.where = name, .text = text}, range);
    return std::string();
  };
  return option->check(judge, fmt::format("{} to {}", range.first, range.last));
}

void run_command(CLI::App& app, const std::vector<std::string>& arguments) {
  require_values(arguments);
  for (CLI::App* command : app.get_subcommands({})) require_sound_values(*command);
  try {
    // CLI11 takes arguments from the end.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Success&) {
    throw;
  } catch (const CLI::ParseError& error) {
    refuse_command_line(app, error, arguments);
  }
}

}  // namespace barestep
