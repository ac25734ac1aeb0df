// What is installed beside a program so that shells and `man` know its options. All of it is made
// from the arguments that the program parses.
#pragma once

#include <string>
#include <vector>

#include "argument_parser.h"

namespace barestep {

/// A command of a program, or the program itself.
struct CommandText {
  std::string name{};         // of the command; empty for the program itself
  std::string description{};  // a sentence
  std::vector<Argument> arguments{};
};

struct ProgramText {
  std::string program{};
  std::string version{};
  std::string examples{};  // as --help prints them; lines may end in a backslash
  CommandText self{};
  std::vector<CommandText> commands{};  // those that users see
};

/// A script that bash sources. After it, bash completes commands, options, and values that are one
/// of several words; names of files where any other text may stand, and nothing where a number
/// must.
std::string bash_completion(const ProgramText& text);

/// A file for a folder in zsh's fpath, which completes the same.
std::string zsh_completion(const ProgramText& text);

/// A page for man(1), in its macros.
std::string man_page(const ProgramText& text);

}  // namespace barestep
