// What an experiment comes to: sentences, tables and plots, as data; and how sentences and tables
// write numbers: three digits and a unit.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/units.h"
#include "lab/samples.h"

namespace barestep {

struct FindingTable {
  std::string title{};
  std::vector<std::string> columns{};
  std::vector<std::vector<std::string>> rows{};
};

struct PlotPoint {
  double x = 0;
  double y = 0;
  double low = 0;  // ends of the error bar; both y where there is none
  double high = 0;
};

/// A point with its error bar, `scale` applied.
inline PlotPoint plot_point(double x, const Estimate& y, double scale = 1) {
  return {x, scale * y.median, scale * y.low, scale * y.high};
}
inline PlotPoint plot_point(double x, double y) {
  return {x, y, y, y};
}

enum class SeriesStyle { kMarked, kLine, kDashed, kMarks };

/// Something that lasts, in a row of a timeline.
struct PlotSpan {
  std::size_t row = 0;
  double begin = 0;
  double end = 0;
};

struct PlotSeries {
  std::string name{};
  SeriesStyle style = SeriesStyle::kMarked;
  std::vector<PlotPoint> points{};
  std::vector<PlotSpan> spans{};
};

/// Lines over numbers, or, with `categories`, bars: series stacked on each category, the x of a
/// point being the number of its category. A timeline has a row for each category, and spans.
struct Plot {
  std::string title{};
  std::string x_label{};
  std::string y_label{};
  bool log_x = false;  // marks at the x of the points, where they are few
  bool log_y = false;  // of lines; all y above 0
  bool is_timeline = false;
  std::vector<std::string> categories{};
  std::vector<PlotSeries> series{};
};

struct Findings {
  std::vector<std::string> sentences{};  // the answers, first the main one
  std::vector<FindingTable> tables{};
  std::vector<Plot> plots{};
};

/// "12.3 ms (12.1 ms to 12.9 ms)".
std::string time_text(const Estimate& seconds);

/// "1.85x"; of an interval "1.85x (1.80x to 1.91x)".
std::string factor_text(double factor);
std::string factor_text(const Estimate& factor);

/// "a", "a and b", "a, b and c".
std::string list_text(const std::vector<std::string>& items);

}  // namespace barestep
