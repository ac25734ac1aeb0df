// A file of its own, since a page in the browser has another: its library reads no real numbers.
#include "core/units.h"

namespace barestep {

std::from_chars_result read_real(std::string_view text, double& number, std::chars_format format) {
  return std::from_chars(text.data(), text.data() + text.size(), number, format);
}

}  // namespace barestep
