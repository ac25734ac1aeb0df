// Numbers as sentences and tables show them: three digits and a unit.
#pragma once

#include <string>
#include <vector>

#include "lab/samples.h"

namespace barestep {

/// "12.3 ms", "456 us", "1.20 s".
std::string time_text(double seconds);
std::string time_text(const Estimate& seconds);  // "12.3 ms (12.1 ms to 12.9 ms)"

/// "36.2 %".
std::string percent_text(double share);

/// "1.85x"; of an interval "1.85x (1.80x to 1.91x)".
std::string factor_text(double factor);
std::string factor_text(const Estimate& factor);

/// Three digits: "0.0123", "1.23", "12,300".
std::string number_text(double number);

/// "a", "a and b", "a, b and c".
std::string list_text(const std::vector<std::string>& items);

}  // namespace barestep
