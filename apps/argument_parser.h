// The command line of every program, and the only place that knows CLI11. It takes each value as
// text: what a value means is judged by who asks for it, with one message for each mistake.
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

/// An option, or, where its name has no dashes, an argument that stands by itself.
struct Argument {
  std::string name;    // "--lr", "folder"
  std::string type{};  // "N"; an option without a type is a flag
  std::string help{};
  std::string group = "Options";
  bool is_required = false;
  bool takes_several = false;  // of those without dashes
  Read read{};                 // called for each value, once all arguments are known
};

Argument option(std::string name, std::string type, std::string help, Read read);
Argument flag(std::string name, std::string help, bool& member);
Argument required(Argument argument);
Argument several(Argument argument);

/// What fills a member, which must outlive the parser.
Read to_text(std::string& member);
Read to_path(std::filesystem::path& member);
/// A whole number from 1 to `most`.
template <class T>
Read to_number(T& member, std::int64_t most) {
  return [&member, most](const RawValue& given) {
    member = static_cast<T>(whole_number(given, {1, most}));
  };
}

/// What mlp_single is, or `run` of mlp_lab.
class Command {
 public:
  virtual ~Command() = default;
  /// Arguments without dashes are taken in the order in which they are added.
  virtual void add(Argument argument) = 0;
};

class ArgumentParser {
 public:
  /// `examples` end every --help.
  ArgumentParser(std::string_view program, std::string_view version, std::string_view description,
                 std::string_view examples);
  ~ArgumentParser();
  ArgumentParser(const ArgumentParser&) = delete;
  ArgumentParser& operator=(const ArgumentParser&) = delete;

  /// The program itself, where it has no commands.
  Command& program();

  /// A command of a program that has them; one without a description is not for users. parse() ends
  /// with `run` of the one that is given.
  Command& add_command(std::string_view name, std::string_view description,
                       std::function<void()> run);

  /// Reads all arguments, which come without the program's name. Returns what --help or --version
  /// ask for, which is all there is to do then; else empty. Throws Error(kUsage), and what reading
  /// and running throw.
  std::string parse(const std::vector<std::string>& arguments);

 private:
  class Bound;
  struct State;
  std::unique_ptr<State> state_;
};

/// What to say about a name that is none of `names`: "did you mean --lr?" (without dashes for what
/// is no option), or where to look when nothing is near.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> names,
                         bool dashes);

}  // namespace barestep
