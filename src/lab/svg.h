// Plots as SVG: no script, no font and no file from elsewhere. Colours come from a style sheet, so
// that they follow a light or dark page, and print light.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/findings.h"

namespace barestep {

/// The element, without a style sheet.
std::string svg_of(const Plot& plot);

/// What colours it: rules for classes that begin with "bs-".
std::string_view svg_style();

/// The same as a file of its own.
std::string svg_file_of(const Plot& plot);

/// About `count` round numbers (1, 2 or 5 times a power of ten apart) from at most `low` to at
/// least `high`. `low` must be below `high`.
std::vector<double> round_marks(double low, double high, int count);

/// With &, <, > and quotes as XML writes them.
std::string xml_text(std::string_view text);

}  // namespace barestep
