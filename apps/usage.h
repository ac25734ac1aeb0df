// What can be wrong with a command line as such, in the words of every program.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace barestep {

/// Throws Error(kUsage).
[[noreturn]] void refuse_usage(std::string what, std::string value, std::string why,
                               std::string remedy);

[[noreturn]] void refuse_missing_value(const std::string& option);
[[noreturn]] void refuse_repeated(const std::string& option);

/// An argument that is no option of `program` nor the value of one. `options` are the names it has,
/// without dashes.
[[noreturn]] void refuse_unknown_argument(std::string_view program, const std::string& argument,
                                          std::span<const std::string_view> options);

/// Refuses "--lr=": CLI11 would take the next argument as the value.
void require_values(const std::vector<std::string>& arguments);

/// What to say about a name that is none of `names`: "did you mean --lr?" (without dashes for what
/// is no option), or where to look when nothing is near.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> names,
                         bool dashes);

}  // namespace barestep
