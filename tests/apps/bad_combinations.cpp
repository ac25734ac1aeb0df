// The table of options that are refused together, as command lines that each row refuses.
#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <optional>

#include "apps/bad_input.h"
#include "core/error.h"
#include "options/options.h"
#include "support/arguments.h"
#include "support/option_samples.h"

namespace barestep {
namespace {

const Option* option_of(SchemeKind usual, std::string_view name) {
  const std::span<const Option> options = options_of(usual);
  const auto found = std::ranges::find(options, name, &Option::name);
  return found == options.end() ? nullptr : &*found;
}

bool takes(const Option& option, const std::string& value) {
  TrainConfig config;
  try {
    option.value.read({.where = "", .text = value}, config);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// A value that the condition is about: a literal one, else one that matches the pattern.
std::optional<std::string> value_of(const Condition& condition, const Option& option) {
  if (condition.values.empty()) return sample_of(option);
  const std::string& pattern = condition.values.front();
  for (const std::string& value :
       {sample_of(option), pattern, std::string("4,8"), std::string("128")}) {
    if (fnmatch(pattern.c_str(), value.c_str(), 0) == 0 && takes(option, value)) return value;
  }
  return std::nullopt;
}

/// The arguments with which the condition holds; none if it holds without any. Nothing if the
/// program has no such option, or not with this value.
std::optional<Arguments> arguments_for(const Condition& condition, SchemeKind usual) {
  const Option* const option = option_of(usual, condition.name);
  if (option == nullptr) return condition.is_opposite ? std::optional(Arguments{}) : std::nullopt;
  const std::optional<std::string> before = option->value.text({});
  std::optional<std::string> value;
  if (condition.is_opposite) {
    if (condition.holds(before, before)) return Arguments{};
    value = sample_of(*option);
  } else {
    value = value_of(condition, *option);
  }
  if (!value) return std::nullopt;
  const std::string name = fmt::format("--{}", option->name);
  return is_flag(*option) ? Arguments{name} : Arguments{name, *value};
}

struct Row {
  Arguments arguments{};
  std::vector<std::string_view> named{};  // options

  [[nodiscard]] bool names(std::string_view option) const {
    return std::ranges::find(named, option) != named.end();
  }
  [[nodiscard]] bool gives(const std::string& option) const {
    return std::ranges::find(arguments, option) != arguments.end();
  }
};

/// Adds what an earlier row of the table would else refuse to lack.
void add_needs(Row& row) {
  const auto add = [&](const char* option, const char* value) {
    if (row.names(option)) return;
    row.arguments.insert(row.arguments.end(), {fmt::format("--{}", option), value});
  };
  if (row.gives("--evaluate-only")) {
    add("load", "w");
    add("data", "idx:x,y");
  }
  if (row.gives("--resume") || row.gives("--checkpoint-best")) add("checkpoint", "c");
  if (row.gives("--recompute") && row.names("memory")) row.arguments.emplace_back("--plan");
}

std::optional<Row> row_of(const OptionConflict& conflict, const Condition& given,
                          SchemeKind usual) {
  Row row;
  std::vector<Condition> conditions = {given};
  conditions.insert(conditions.end(), conflict.when.begin(), conflict.when.end());
  for (const Condition& condition : conditions) {
    const auto arguments = arguments_for(condition, usual);
    if (!arguments) return std::nullopt;
    row.arguments.insert(row.arguments.end(), arguments->begin(), arguments->end());
    row.named.push_back(condition.name);
  }
  add_needs(row);
  return row;
}

/// The text with the program's value of the option that it names in braces.
std::string with_values(std::string text, const Arguments& arguments, SchemeKind usual) {
  const std::size_t begin = text.find('{');
  if (begin == std::string::npos) return text;
  const std::size_t end = text.find('}');
  const std::string name = text.substr(begin + 1, end - begin - 1);
  const auto found = std::ranges::find(arguments, "--" + name);
  const std::string value = found == arguments.end()
                                ? option_of(usual, name)->value.text({}).value_or("")
                                : *std::next(found);
  return text.replace(begin, end + 1 - begin, value);
}

BadInput refusal_of(const OptionConflict& conflict, const Condition& given, const Row& row,
                    const TrainingProgram& program) {
  const std::string value = given.values.empty() ? "" : fmt::format(" '{}'", row.arguments[1]);
  const std::string why = with_values(conflict.why, row.arguments, program.usual);
  return {.section = "Options that exclude each other",
          .program = std::string(program.name),
          .arguments = row.arguments,
          .exit_code = 78,
          .line = fmt::format("--{}{}: {}; {}", given.name, value, why, conflict.remedy)};
}

}  // namespace

std::vector<BadInput> bad_combinations(SchemeKind usual) {
  std::vector<BadInput> all;
  for (const OptionConflict& conflict : conflicts()) {
    for (const Condition& refused : conflict.options) {
      const std::size_t values = std::max<std::size_t>(refused.values.size(), 1);
      for (std::size_t i = 0; i < values; ++i) {
        Condition given = refused;
        if (!given.values.empty()) given.values = {refused.values[i]};
        for (const TrainingProgram& program : kTrainingPrograms) {
          const auto row = row_of(conflict, given, program.usual);
          if (!row) continue;
          if (program.usual == usual) all.push_back(refusal_of(conflict, given, *row, program));
          break;
        }
      }
    }
  }
  return all;
}

}  // namespace barestep
