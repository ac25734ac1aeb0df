// Reads real numbers. A seam: not every standard library has std::from_chars for them.
#pragma once

#include <charconv>
#include <string_view>

namespace barestep {

/// Reads the number at the start of `text` into `number`, as std::from_chars does: without blanks,
/// a plus sign or hexadecimal digits before it, whatever the locale. Returns where it ends and the
/// error; `number` changes only without one.
std::from_chars_result read_real(std::string_view text, double& number,
                                 std::chars_format format = std::chars_format::general);

}  // namespace barestep
