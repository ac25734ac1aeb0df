// What an experiment comes to: sentences, tables and plots, as data.
#pragma once

#include <string>
#include <vector>

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

struct PlotSeries {
  std::string name{};
  SeriesStyle style = SeriesStyle::kMarked;
  std::vector<PlotPoint> points{};
};

/// Lines over numbers, or, with `categories`, bars: series stacked on each category, the x of a
/// point being the number of its category.
struct Plot {
  std::string title{};
  std::string x_label{};
  std::string y_label{};
  bool log_x = false;  // marks at the x of the points
  std::vector<std::string> categories{};
  std::vector<PlotSeries> series{};
};

struct Findings {
  std::vector<std::string> sentences{};  // the answers, first the main one
  std::vector<FindingTable> tables{};
  std::vector<Plot> plots{};
};

}  // namespace barestep
