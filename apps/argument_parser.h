// The command line of every program, and the only code that uses CLI11. It takes each value as
// text; the code that needs a value checks it, with one message for each mistake.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "options/option_values.h"

namespace barestep {

using Read = std::function<void(const RawValue&)>;

/// An option, or a positional argument if its name has no dashes.
struct Argument {
  std::string name;    // "--lr", "folder"
  std::string type{};  // "N"; empty for a flag
  std::string help{};
  std::vector<std::string> values{};  // words that it may be, for completion if `type` has none
  std::string group = "Options";
  bool is_required = false;
  bool takes_several = false;  // for positional arguments
  bool takes_rest = false;     // itself and all that follows, options too; after it no other
  Read read{};                 // called for each value after all arguments are known
};

/// Whether it is an option.
inline bool has_dashes(const Argument& argument) {
  return argument.name.starts_with("--");
}

Argument option(std::string name, std::string type, std::string help, Read read);
Argument flag(std::string name, std::string help, bool& member);
Argument required(Argument argument);
Argument several(Argument argument);
Argument rest(Argument argument);

/// An argument with these words for values.
Argument with_values(Argument argument, std::vector<std::string> values);

/// Stores the value in `member`, which must outlive the parser.
Read to_text(std::string& member);
Read to_path(std::filesystem::path& member);
/// Adds the value to `all`, which must outlive the parser.
Read to_texts(std::vector<std::string>& all);
Read to_paths(std::vector<std::filesystem::path>& all);
template <class T>
Read to_bytes(T& member) {
  return [&member](const RawValue& given) { member = byte_count(given); };
}
/// Reads a whole number from 1 to `max`.
template <class T>
Read to_number(T& member, std::int64_t max) {
  return [&member, max](const RawValue& given) {
    member = static_cast<T>(whole_number(given, {1, max}));
  };
}

/// A set of arguments: those of mlp_single, or of the command `run` of mlp_lab.
class Command {
 public:
  virtual ~Command() = default;
  /// Positional arguments are taken in the order in which they are added.
  virtual void add(Argument argument) = 0;
};

class ArgumentParser {
 public:
  /// `examples`, a title and a line each, are printed at the end of --help; that of a command
  /// prints only its own.
  ArgumentParser(std::string_view program, std::string_view version, std::string_view description,
                 std::string_view examples);
  ~ArgumentParser();
  ArgumentParser(const ArgumentParser&) = delete;
  ArgumentParser& operator=(const ArgumentParser&) = delete;

  /// The program itself, if it has no commands.
  Command& program();

  /// Adds a command; without a description, it is hidden from users. parse() calls the `run` of the
  /// given command last.
  Command& add_command(std::string_view name, std::string_view description,
                       std::function<void()> run);

  /// Reads all arguments; the program's name is not among them. Returns the output of --help,
  /// --version, --completion or --man, after which the program should exit; else empty. Throws
  /// Error(kUsage), and what reading and running throw.
  std::string parse(const std::vector<std::string>& arguments);

 private:
  class Bound;
  struct State;
  std::unique_ptr<State> state_;
};

/// The hint for a name that is not in `names`: "did you mean --lr?" (without dashes for names other
/// than options), or where to look if none is similar.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> names,
                         bool dashes);

}  // namespace barestep
