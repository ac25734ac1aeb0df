#include "program_texts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string_view>

namespace barestep {
namespace {

bool is_file(std::string_view type) {
  return type.ends_with("FILE") || type.ends_with("DIR") || type.ends_with("PROGRAM");
}

/// "randn|teacher|idx:X,Y" gives randn, teacher and idx:; what is in capitals is not typed as it
/// stands.
std::vector<std::string> words_of(const Argument& argument) {
  if (!argument.values.empty()) return argument.values;
  std::vector<std::string> words;
  std::istringstream alternatives(argument.type);
  for (std::string word; std::getline(alternatives, word, '|');) {
    const auto end = std::ranges::find_if(
        word, [](unsigned char c) { return std::isupper(c) != 0 || c == '['; });
    word.erase(end, word.end());
    if (!word.empty() && std::isalpha(static_cast<unsigned char>(word.front())) != 0) {
      words.push_back(word);
    }
  }
  return words;
}

/// Whether only a number can be meant, so that a shell has nothing to offer.
bool is_number(const Argument& argument) {
  return has_dashes(argument) && words_of(argument).empty() && !is_file(argument.type);
}

/// All of a command's options and those that every command has.
std::string names_of_options(const CommandText& command, bool is_program) {
  std::string names;
  for (const Argument& argument : command.arguments) {
    if (has_dashes(argument)) names += argument.name + " ";
  }
  return names + (is_program ? "--help --version" : "--help");
}

/// The patterns of `case` for what follows an option of a command: its words; nothing for numbers.
std::string bash_values(const CommandText& command) {
  std::string cases;
  for (const Argument& argument : command.arguments) {
    if (!has_dashes(argument) || argument.type.empty()) continue;
    const std::vector<std::string> words = words_of(argument);
    const std::string pattern = fmt::format("    '{} {}')", command.name, argument.name);
    if (!words.empty()) {
      cases += fmt::format("{} words='{}' ;;\n", pattern, fmt::join(words, " "));
    } else if (is_number(argument)) {
      cases += pattern + " files= ;;\n";
    } else {
      cases += pattern + " ;;\n";
    }
  }
  return cases;
}

/// Those for a word that follows no option.
std::string bash_words(const CommandText& command, bool is_program) {
  std::string first;
  for (const Argument& argument : command.arguments) {
    if (has_dashes(argument)) continue;
    for (const std::string& word : words_of(argument)) first += word + " ";
  }
  return fmt::format(
      "    '{} '*)\n      words='{}'\n      if [[ $word == -* ]]; then words='{}'; fi ;;\n",
      command.name, first, names_of_options(command, is_program));
}

std::string joined_names(const std::vector<CommandText>& commands) {
  std::vector<std::string> names;
  for (const CommandText& command : commands) names.push_back(command.name);
  return fmt::format("{}", fmt::join(names, " "));
}

/// In single quotes of a shell.
std::string in_quotes(const std::string& text) {
  std::string quotes = "'";
  for (const char c : text) quotes += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quotes + "'";
}

/// A text in an argument of zsh's _arguments, where brackets and colons have a meaning.
std::string zsh_text(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return escaped;
}

/// ":SIZE:" and what completes it.
std::string zsh_value(const Argument& argument) {
  std::string words;
  for (const std::string& word : words_of(argument)) words += zsh_text(word) + " ";
  const std::string action = !words.empty()        ? "(" + words.substr(0, words.size() - 1) + ")"
                             : is_number(argument) ? " "
                                                   : "_files";
  const std::string name = argument.type.empty() ? argument.name : argument.type;
  return fmt::format(":{}:{}", zsh_text(name), action);
}

/// The call of _arguments for a command.
std::string zsh_arguments(const CommandText& command, bool is_program) {
  std::string call = "_arguments";
  for (const Argument& argument : command.arguments) {
    const std::string help = zsh_text(argument.help);
    std::string specification;
    if (!has_dashes(argument)) {
      specification = (argument.takes_several ? "*" : "") + zsh_value(argument);
    } else {
      specification = fmt::format("{}[{}]", argument.name, help);
      if (!argument.type.empty()) specification += zsh_value(argument);
    }
    call += " \\\n    " + in_quotes(specification);
  }
  call += " \\\n    '--help[print this and exit]'";
  if (is_program) call += " \\\n    '--version[print the version and exit]'";
  return call + "\n";
}

/// Text of a page for man: a line that began with a dot or a quote would be a macro.
std::string man_text(std::string_view text) {
  std::string escaped;
  bool at_start = true;
  for (const char c : text) {
    if (at_start && (c == '.' || c == '\'')) escaped += "\\&";
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
    at_start = c == '\n';
  }
  return escaped;
}

std::string in_capitals(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

/// The arguments of a command, under their groups where there are several.
std::string man_arguments(const CommandText& command) {
  std::string page;
  std::string group = "Options";
  for (const Argument& argument : command.arguments) {
    if (argument.group.empty()) continue;  // hidden
    if (argument.group != group) page += fmt::format(".SS {}\n", argument.group);
    group = argument.group;
    page += fmt::format(".TP\n.B {} {}\n{}\n", man_text(argument.name), man_text(argument.type),
                        man_text(argument.help));
  }
  return page;
}

}  // namespace

std::string bash_completion(const ProgramText& text) {
  std::string script = fmt::format(
      R"(# Completion in bash; written by `{0} --completion bash`.
_{0}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}}
  local command= words= files=yes
)",
      text.program);
  // bash takes --option=value apart into three words.
  script += R"(  if [[ $word == = ]]; then
    word=
  elif [[ $before == = ]]; then
    before=${COMP_WORDS[COMP_CWORD - 2]}
  fi
)";
  if (!text.commands.empty()) {
    script += fmt::format(R"(  if [ "$COMP_CWORD" -gt 1 ]; then command=${{COMP_WORDS[1]}}; fi
  if [ -z "$command" ]; then
    words='{}'
    if [[ $word == -* ]]; then words='{}'; fi
  else
)",
                          joined_names(text.commands), names_of_options(text.self, true));
  }
  script += R"(  if [[ $before != -* ]]; then before=; fi
  case "$command $before" in
)";
  std::vector<CommandText> all = text.commands;
  if (all.empty()) all.push_back(text.self);
  for (const CommandText& command : all) {
    script += bash_values(command) + bash_words(command, text.commands.empty());
  }
  script += "  esac\n";
  if (!text.commands.empty()) script += "  fi\n";
  // Without an answer, bash completes names of files.
  script += fmt::format(R"(  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  if [ -z "$files" ]; then compopt +o default; fi
  if [[ ${{#COMPREPLY[@]}} == 1 && ${{COMPREPLY[0]}} == *: ]]; then compopt -o nospace; fi
}}
complete -o default -F _{0} {0}
)",
                        text.program);
  return script;
}

std::string zsh_completion(const ProgramText& text) {
  std::string script = fmt::format(
      "#compdef {0}\n# Completion in zsh; written by `{0} --completion zsh`.\n", text.program);
  if (text.commands.empty()) return script + zsh_arguments(text.self, true);
  script += "if (( CURRENT == 2 )); then\n  local -a all=(\n";
  for (const CommandText& command : text.commands) {
    script += "    " + in_quotes(command.name + ":" + zsh_text(command.description)) + "\n";
  }
  script += "  )\n  _describe command all\n  " + zsh_arguments(text.self, true) +
            "  return\nfi\nshift words\n(( CURRENT-- ))\ncase $words[1] in\n";
  for (const CommandText& command : text.commands) {
    script += fmt::format("  {})\n  {}  ;;\n", command.name, zsh_arguments(command, false));
  }
  return script + "esac\n";
}

std::string man_page(const ProgramText& text) {
  const std::string& name = text.program;
  std::string page = fmt::format(
      ".TH {} 1 \"\" \"barestep {}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.B "
      "{}\n{}[options]\n.SH DESCRIPTION\n{}\n",
      man_text(in_capitals(name)), man_text(text.version), man_text(name),
      man_text(text.self.description.substr(0, text.self.description.find_first_of(".,"))),
      man_text(name), text.commands.empty() ? "" : "COMMAND ", man_text(text.self.description));
  page += ".SH OPTIONS\n" + man_arguments(text.self);
  if (!text.commands.empty()) page += ".SH COMMANDS\n";
  for (const CommandText& command : text.commands) {
    page += fmt::format(".SS {} {}\n{}\n", man_text(name), man_text(command.name),
                        man_text(command.description));
    page += man_arguments(command);
  }
  const std::size_t title = text.examples.find('\n');
  page += ".SH EXAMPLES\n.nf\n" + man_text(text.examples.substr(title + 1)) + "\n.fi\n";
  page +=
      ".SH EXIT STATUS\n0, or a code of sysexits(3) after one line on standard error that says "
      "what is wrong and what to do.\n";
  return page;
}

}  // namespace barestep
