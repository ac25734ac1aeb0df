#include "usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace barestep {

void refuse_usage(std::string what, std::string value, std::string why, std::string remedy) {
  fail(ExitCode::kUsage, {.what = std::move(what),
                          .value = std::move(value),
                          .why = std::move(why),
                          .remedy = std::move(remedy)});
}

void refuse_missing_value(const std::string& option) {
  refuse_usage("option", option, "needs a value", "--help shows which");
}

void refuse_repeated(const std::string& option) {
  refuse_usage("option", option, "given twice", "give it once");
}

void refuse_unknown_argument(std::string_view program, const std::string& argument,
                             std::span<const std::string_view> options) {
  if (!argument.starts_with('-') || argument == "-" || argument == "--") {
    refuse_usage("argument", argument, "belongs to no option", "options begin with --, see --help");
  }
  const std::string option = argument.substr(0, argument.find('='));
  refuse_usage("unknown option", option, fmt::format("{} has no such option", program),
               did_you_mean(option, options, true));
}

void require_values(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument.starts_with("--") && argument.find('=') == argument.size() - 1) {
      refuse_missing_value(argument.substr(0, argument.size() - 1));
    }
  }
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> names,
                         bool dashes) {
  const std::size_t leading = std::min(name.find_first_not_of('-'), name.size());
  const std::string_view near = nearest(name.substr(leading), names);
  if (near.empty()) return "--help lists all";
  return fmt::format("did you mean {}{}?", dashes ? "--" : "", near);
}

}  // namespace barestep
