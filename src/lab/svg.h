// Any plot as SVG: no script, no font and no file from elsewhere. A plot brings its own white card,
// so that it reads the same on a dark page and on paper.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/findings.h"

namespace barestep {

enum class PlotSize {
  kFull,
  kThumbnail,  // lines and bars alone, without a word
};

/// The element, without a style sheet. Parts of a step and of memory have the same colour in every
/// plot, and one order in every legend.
std::string svg_of(const Plot& plot, PlotSize size = PlotSize::kFull);

/// What colours it: rules for classes that begin with "bs-".
std::string svg_style();

/// The same as a separate file.
std::string svg_file_of(const Plot& plot);

/// About `count` round numbers (1, 2 or 5 times a power of ten apart) from at most `low` to at
/// least `high`. `low` must be below `high`.
std::vector<double> round_marks(double low, double high, int count);

/// With &, <, > and quotes as XML writes them.
std::string xml_text(std::string_view text);

}  // namespace barestep
