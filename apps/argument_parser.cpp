#include "argument_parser.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "program_texts.h"

namespace barestep {
namespace {

constexpr std::size_t kHelpWidth = 100;
constexpr std::size_t kHelpIndent = 31;

[[noreturn]] void refuse_missing_value(const std::string& option) {
  fail(ExitCode::kUsage, {"option", option, "needs a value", "--help shows which"});
}

/// Breaks text into lines of at most `width` characters; a longer word gets its own line.
std::string wrapped(const std::string& text, std::size_t width) {
  std::string lines;
  std::istringstream paragraphs(text);
  for (std::string paragraph; std::getline(paragraphs, paragraph);) {
    std::istringstream words(paragraph);
    std::string line;
    for (std::string word; words >> word;) {
      if (!line.empty() && line.size() + 1 + word.size() > width) {
        lines += line + "\n";
        line.clear();
      }
      line += (line.empty() ? "" : " ") + word;
    }
    lines += line + "\n";
  }
  if (!lines.empty()) lines.pop_back();
  return lines;
}

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kHelpIndent); }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = fmt::format("\nUsage: {}", name);
    const bool has_commands = !app->get_subcommands({}).empty();
    usage += has_commands ? " COMMAND [options]" : " [options]";
    for (const CLI::Option* option : app->get_options()) {
      if (!option->get_positional()) continue;
      usage += fmt::format(" {}{}", option->get_name(),
                           option->get_items_expected_max() > 1 ? "..." : "");
    }
    if (app->get_prefix_command()) usage += " command...";
    return usage + "\n\n";
  }
  [[nodiscard]] std::string make_group(std::string group, bool is_positional,
                                       std::vector<const CLI::Option*> options) const override {
    return CLI::Formatter::make_group(std::move(group), is_positional, std::move(options))
        .substr(1);
  }
  std::string make_footer(const CLI::App* app) const override { return app->get_footer() + "\n"; }
};

bool is_flag(const Argument& argument) {
  return has_dashes(argument) && argument.type.empty();
}

/// The lines that show a command, after the title; nothing if there are none.
std::string examples_of(const std::string& command, const std::string& all) {
  std::istringstream lines(all);
  std::string title, line, text;
  std::getline(lines, title);
  while (std::getline(lines, line)) {
    if (line.starts_with("  " + command + " ") || line == "  " + command) text += "\n" + line;
  }
  return text.empty() ? "" : title + text;
}

}  // namespace

Argument option(std::string name, std::string type, std::string help, Read read) {
  return {.name = std::move(name),
          .type = std::move(type),
          .help = std::move(help),
          .read = std::move(read)};
}

Argument flag(std::string name, std::string help, bool& member) {
  return option(std::move(name), "", std::move(help), [&member](const RawValue& given) {
    no_value(given);
    member = true;
  });
}

Argument required(Argument argument) {
  argument.is_required = true;
  return argument;
}

Argument several(Argument argument) {
  argument.takes_several = true;
  return argument;
}

Argument rest(Argument argument) {
  argument.takes_rest = argument.takes_several = argument.is_required = true;
  return argument;
}

Argument with_values(Argument argument, std::vector<std::string> values) {
  argument.values = std::move(values);
  return argument;
}

Read to_text(std::string& member) {
  return [&member](const RawValue& given) { member = given.text; };
}

Read to_path(std::filesystem::path& member) {
  return [&member](const RawValue& given) { member = file_path(given); };
}

Read to_texts(std::vector<std::string>& all) {
  return [&all](const RawValue& given) { all.push_back(given.text); };
}

Read to_paths(std::vector<std::filesystem::path>& all) {
  return [&all](const RawValue& given) { all.push_back(file_path(given)); };
}

/// A command with the readers of its arguments.
class ArgumentParser::Bound final : public Command {
 public:
  Bound(CLI::App& app, std::string_view name, std::function<void()> run)
      : app_(app), name_(name), run_(std::move(run)) {
    app_.formatter(std::make_shared<HelpFormatter>());
    app_.set_help_flag();
    app_.allow_extras();
  }

  void add(Argument argument) override {
    if (argument.takes_rest) {
      app_.prefix_command();
      arguments_.push_back(std::move(argument));
      return;
    }
    const bool has_value = !is_flag(argument);
    CLI::Option* added = has_value ? app_.add_option(argument.name) : app_.add_flag(argument.name);
    if (has_value) added->type_name(argument.type);
    if (argument.takes_several) {
      added->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args();
    }
    added->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->description(wrapped(argument.help, kHelpWidth - kHelpIndent))
        ->group(argument.group);
    arguments_.push_back(std::move(argument));
  }

  /// Call last: --help shows options in the order in which they were added.
  void add_help() { app_.set_help_flag("-h,--help", "print this and exit")->group("Other"); }

  /// Checks and reads the values given.
  void read() const {
    for (const Argument& argument : arguments_) require_sound(argument);
    const std::vector<std::string> remaining = app_.remaining();
    if (!remaining.empty() && rest().empty()) refuse_unknown(remaining.front());
    for (const Argument& argument : arguments_) {
      if (argument.is_required && given(argument).empty()) {
        fail(ExitCode::kUsage, {has_dashes(argument) ? "option" : "argument", argument.name,
                                "is missing", fmt::format("{} --help describes it", name_)});
      }
      for (const std::string& text : given(argument)) {
        argument.read({.where = argument.name, .text = text});
      }
    }
  }

  void run() const { run_(); }
  [[nodiscard]] bool is_given(const std::string& argument) const {
    return app_.get_option(argument)->count() > 0;
  }
  [[nodiscard]] CommandText text() const {
    return {
        .name = app_.get_name(), .description = app_.get_description(), .arguments = arguments_};
  }
  [[nodiscard]] const CLI::App& app() const { return app_; }
  [[nodiscard]] bool is_shown() const { return !app_.get_description().empty(); }

 private:
  [[nodiscard]] std::vector<std::string> given(const Argument& argument) const {
    return argument.takes_rest ? rest() : app_.get_option(argument.name)->results();
  }

  /// What CLI11 left to a command that takes it; it begins with no option, or that is unknown.
  [[nodiscard]] std::vector<std::string> rest() const {
    std::vector<std::string> remaining = app_.remaining();
    const bool begins = !remaining.empty() && !remaining.front().starts_with('-');
    return begins && app_.get_prefix_command() ? remaining : std::vector<std::string>();
  }

  /// Rejects what CLI11 accepts: an option given twice, or the next option taken as a value.
  void require_sound(const Argument& argument) const {
    const std::vector<std::string> texts = given(argument);
    if (texts.size() > 1 && !argument.takes_several) {
      fail(ExitCode::kUsage, {"option", argument.name, "given twice", "give it once"});
    }
    if (is_flag(argument) || texts.empty() || !texts.front().starts_with("--")) return;
    refuse_missing_value(argument.name);
  }

  [[noreturn]] void refuse_unknown(const std::string& argument) const {
    if (!argument.starts_with('-') || argument == "-" || argument == "--") {
      fail(ExitCode::kUsage,
           {"argument", argument, "belongs to no option", "options begin with --, see --help"});
    }
    const std::string option = argument.substr(0, argument.find('='));
    std::vector<std::string_view> names;
    for (const CLI::Option* known : app_.get_options()) {
      for (const std::string& name : known->get_lnames()) names.push_back(name);
    }
    fail(ExitCode::kUsage, {"unknown option", option, fmt::format("{} has no such option", name_),
                            did_you_mean(option, names, true)});
  }

  CLI::App& app_;
  std::string name_;  // e.g. "mlp_lab run"
  std::function<void()> run_;
  std::vector<Argument> arguments_;
};

struct ArgumentParser::State {
  CLI::App app;
  std::string program;
  std::string version{};
  Bound self;
  std::vector<std::unique_ptr<Bound>> commands;
  std::size_t shell = 0;  // of --completion
  bool shows_man_page = false;

  State(std::string_view name, std::string_view description)
      : app(std::string(description), std::string(name)), program(name), self(app, name, {}) {
    // At most one, since a command's argument may have the name of another command.
    app.require_subcommand(0, 1);
  }

  static constexpr std::string_view kShells[] = {"bash", "zsh"};

  /// The options that every program has.
  void add_others() {
    Argument completion =
        option("--completion", "bash|zsh", "print completions for this shell and exit",
               [this](const RawValue& given) { shell = choice(given, kShells); });
    Argument man = flag("--man", "print a page for man and exit", shows_man_page);
    for (Argument* const argument : {&completion, &man}) {
      argument->group = "Other";
      self.add(std::move(*argument));
    }
    self.add_help();
    app.set_version_flag("--version", fmt::format("{} {}", program, version),
                         "print the version and exit")
        ->group("Other");
    for (const auto& bound : commands) bound->add_help();
  }

  /// The output of --completion or --man; empty if neither is given.
  std::string text_for_others() {
    if (!self.is_given("--completion") && !self.is_given("--man")) return "";
    self.read();
    ProgramText text{
        .program = program, .version = version, .examples = app.get_footer(), .self = self.text()};
    text.self.name.clear();
    for (const auto& bound : commands) {
      if (bound->is_shown()) text.commands.push_back(bound->text());
    }
    if (shows_man_page) return man_page(text);
    return shell == 0 ? bash_completion(text) : zsh_completion(text);
  }

  /// The command given; null for a program without commands.
  [[nodiscard]] const Bound* command() const {
    if (commands.empty()) return nullptr;
    const std::vector<std::string> rest = app.remaining();
    if (rest.empty()) {
      for (const auto& bound : commands) {
        if (bound->app().parsed()) return bound.get();
      }
      fail(ExitCode::kUsage, {"command", "", "is missing", program + " --help lists all"});
    }
    if (rest.front().starts_with('-')) self.read();
    std::vector<std::string_view> names;
    for (const auto& bound : commands) {
      if (bound->is_shown()) names.push_back(bound->app().get_name());
    }
    fail(ExitCode::kUsage,
         {"unknown command", rest.front(), fmt::format("{} has no such command", program),
          did_you_mean(rest.front(), names, false)});
  }
};

ArgumentParser::ArgumentParser(std::string_view program, std::string_view version,
                               std::string_view description, std::string_view examples)
    : state_(std::make_unique<State>(program, description)) {
  state_->version = version;
  state_->app.footer(std::string(examples));
}

ArgumentParser::~ArgumentParser() = default;

Command& ArgumentParser::program() {
  return state_->self;
}

Command& ArgumentParser::add_command(std::string_view name, std::string_view description,
                                     std::function<void()> run) {
  CLI::App* const app = state_->app.add_subcommand(std::string(name), std::string(description));
  if (description.empty()) app->group("");
  const std::string command = fmt::format("{} {}", state_->program, name);
  app->footer(examples_of(command, state_->app.get_footer()));
  state_->commands.push_back(std::make_unique<Bound>(*app, command, std::move(run)));
  return *state_->commands.back();
}

std::string ArgumentParser::parse(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    // CLI11 would take the next argument as the value.
    if (argument.starts_with("--") && argument.find('=') == argument.size() - 1) {
      refuse_missing_value(argument.substr(0, argument.size() - 1));
    }
  }
  state_->add_others();
  try {
    // CLI11 expects arguments in reverse order.
    state_->app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    return state_->app.help();
  } catch (const CLI::CallForVersion&) {
    return state_->app.version() + "\n";
  } catch (const CLI::ArgumentMismatch&) {
    refuse_missing_value(arguments.back());  // only the last option can lack a value
  } catch (const CLI::ParseError& error) {
    fail(ExitCode::kUsage, {"command line", "", error.what(), "see --help"});
  }
  if (std::string text = state_->text_for_others(); !text.empty()) return text;
  const Bound* const command = state_->command();
  if (command == nullptr) {
    state_->self.read();
    return "";
  }
  command->read();
  command->run();
  return "";
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> names,
                         bool dashes) {
  const std::size_t leading = std::min(name.find_first_not_of('-'), name.size());
  const std::string_view near = nearest(name.substr(leading), names);
  if (near.empty()) return "--help lists all";
  return fmt::format("did you mean {}{}?", dashes ? "--" : "", near);
}

}  // namespace barestep
