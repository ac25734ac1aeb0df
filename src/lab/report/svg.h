// Plots as SVG, without scripts, fonts or external files. A plot draws its own card, white in a
// file and on paper.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/report/findings.h"

namespace barestep {

enum class PlotSize {
  kFull,
  kThumbnail,  // only lines and bars, without text
};

/// The SVG element. Each has a style sheet of its own, since some programs that print pages (such
/// as WeasyPrint) ignore the page's. Parts of a step and of memory have the same color in every
/// plot, and the same order in every legend.
std::string svg_of(const Plot& plot, PlotSize size = PlotSize::kFull);

/// Rules for the style sheet of a page that is dark where its reader wants that: so are its plots.
std::string dark_plot_style();

/// About `count` round numbers (1, 2 or 5 times a power of ten apart) from at most `low` to at
/// least `high`. `low` must be below `high`.
std::vector<double> round_marks(double low, double high, int count);

/// Escapes &, <, > and quotes for XML.
std::string xml_text(std::string_view text);

}  // namespace barestep
