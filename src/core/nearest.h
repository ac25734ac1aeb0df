// "Did you mean": the name that is nearest to what was typed.
#pragma once

#include <span>
#include <string_view>

namespace barestep {

/// One of `candidates` that `name` may be a slip of: a few letters off, or cut short. Empty if
/// nothing is near, or two are equally near.
std::string_view nearest(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace barestep
