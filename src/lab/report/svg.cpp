#include "lab/report/svg.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <set>
#include <utility>

#include "core/units.h"
#include "profiler/account.h"

namespace barestep {
namespace {

// Okabe and Ito's colors, which color-blind people can distinguish, and a few more.
constexpr std::array kColors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
                                "#56b4e9", "#b8a800", "#777777", "#7b3294", "#882255",
                                "#1b3a5c", "#44aa99", "#aa4499"};

struct PlotPart {
  std::string_view name;
  std::size_t color;
};

/// Parts that have the same color in every plot, in the order of legends: the account's parts, the
/// parts of memory, and kinds of lines.
const std::vector<PlotPart>& plot_parts() {
  static const std::vector<PlotPart> parts = [] {
    std::vector<PlotPart> all;
    for (const PartTraits& part : kAccountParts) {
      all.push_back({part.plot_name(), part.color});
      if (part.name != part.plot_name()) all.push_back({part.name, part.color});
    }
    const std::initializer_list<PlotPart> others = {
        {"communication", 1}, {"waiting for the last rank", 11},
        {"exchanging", 1},    {"parameters", 0},
        {"gradients", 2},     {"activations", 5},
        {"data", 4},          {"workspace", 7},
        {"measured", 0},      {"simulated", 1},
        {"runs", 0},          {"ideal", 7},
        {"equal", 7},         {"even", 7},
        {"steady state", 7},  {"roof, measured here", 7}};
    all.insert(all.end(), others);
    return all;
  }();
  return parts;
}

/// The index among the parts; their number if the name is not a part.
std::size_t rank_of_part(std::string_view name) {
  const auto found = std::ranges::find(plot_parts(), name, &PlotPart::name);
  return static_cast<std::size_t>(found - plot_parts().begin());
}

/// The color of each series: a part's own, otherwise one that no other series has.
std::vector<std::size_t> colors_of(const std::vector<PlotSeries>& all) {
  std::set<std::size_t> taken;
  for (const PlotSeries& series : all) {
    const std::size_t rank = rank_of_part(series.name);
    if (rank < plot_parts().size()) taken.insert(plot_parts().at(rank).color);
  }
  std::vector<std::size_t> colors;
  for (const PlotSeries& series : all) {
    const std::size_t rank = rank_of_part(series.name);
    std::size_t color = 0;
    if (rank < plot_parts().size()) {
      color = plot_parts().at(rank).color;
    } else {
      while (color + 1 < kColors.size() && taken.contains(color)) ++color;
      taken.insert(color);
    }
    colors.push_back(color);
  }
  return colors;
}

/// Maps numbers to positions on one axis.
struct PlotAxis {
  double low = 0, high = 1;
  double from = 0, to = 1;  // positions of the ends
  bool is_log = false;

  [[nodiscard]] double at(double value) const {
    const auto scaled = [this](double x) { return is_log ? std::log(x) : x; };
    return from + (to - from) * (scaled(value) - scaled(low)) / (scaled(high) - scaled(low));
  }
};

/// The approximate width of a text: fonts differ.
double width_of(std::string_view text) {
  constexpr double kLetter = 6.7;
  return kLetter * static_cast<double>(text.size());
}

std::string line(double x1, double y1, double x2, double y2, std::string_view style) {
  return fmt::format(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>)", x1,
                     y1, x2, y2, style);
}

std::string rectangle(double x, double y, double width, double height, const std::string& style,
                      std::string_view note = "") {
  const std::string end =
      note.empty() ? "/>" : fmt::format("><title>{}</title></rect>", xml_text(note));
  return fmt::format(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="{}"{})",
                     x, y, width, height, style, end);
}

std::string label(double x, double y, std::string_view anchor, std::string_view text,
                  std::string_view style = "bs-text") {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>)", x, y,
                     anchor, style, xml_text(text));
}

std::string mark_text(double mark) {
  return mark >= 1000 ? number_text(mark) : fmt::format("{:g}", mark == 0 ? 0 : mark);
}

/// A number with at most three digits.
std::string value_text(double value) {
  return value >= 1000 ? number_text(value) : fmt::format("{:.3g}", value);
}

/// 1, 2 and 5 times powers of ten, or only the powers if there are many, from at most `low` to at
/// least `high`, both above 0.
std::vector<double> decade_marks(double low, double high) {
  constexpr double kManyDecades = 3;
  const double first = std::floor(std::log10(low)), last = std::ceil(std::log10(high));
  std::vector<double> marks;
  for (double decade = first; decade <= last; ++decade) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      if (digit > 1 && high / low > std::pow(10, kManyDecades)) continue;
      marks.push_back(digit * std::pow(10, decade));
    }
  }
  while (marks.size() > 2 && marks[marks.size() - 2] >= high) marks.pop_back();
  while (marks.size() > 2 && marks[1] <= low) marks.erase(marks.begin());
  return marks;
}

struct LegendEntry {
  std::size_t series;
  double x, y;
};

constexpr std::string_view kHollow = "hollow: beyond the cores";

class Drawing {
 public:
  Drawing(const Plot& plot, PlotSize size)
      : plot_(plot), has_words_(size == PlotSize::kFull), colors_(colors_of(plot.series)) {
    is_bars_ = !plot.categories.empty() && !plot.is_timeline;
    has_rows_ = plot.is_timeline || (is_bars_ && (plot.series.size() > 1 || has_wide_labels()));
    set_values();
    place_legend();
    place_frame();
    set_ends_of_values();
    set_places();
  }

  std::string text() {
    body_ = fmt::format(
        R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {:.0f}" role="img" class="{}" aria-label="{}">)",
        width_, height_, has_words_ ? "bs-plot" : "bs-thumbnail", xml_text(plot_.title));
    body_ += R"(<rect width="100%" height="100%" class="bs-card"/>)";
    if (has_words_) {
      body_ += label(kMargin, 20, "start", plot_.title, "bs-title");
      draw_legend();
      draw_value_axis();
      draw_place_axis();
    }
    draw_axis_line();
    if (plot_.is_timeline) {
      draw_timeline();
    } else if (is_bars_) {
      draw_bars();
      draw_limit();
    } else {
      for (std::size_t i = 0; i < plot_.series.size(); ++i) draw_series(i);
    }
    return body_ + "</svg>";
  }

 private:
  static constexpr double kMargin = 16, kFullWidth = 720, kThumbnailWidth = 200,
                          kThumbnailHeight = 80;

  [[nodiscard]] double widest_label() const {
    double widest = 0;
    for (const std::string& category : plot_.categories)
      widest = std::max(widest, width_of(category));
    return widest;
  }

  /// Whether labels below bars would overlap.
  [[nodiscard]] bool has_wide_labels() const {
    constexpr double kAll = kFullWidth - 90;
    return widest_label() + 8 > kAll / static_cast<double>(plot_.categories.size());
  }

  /// Places it in lines below the title, in the order of the parts.
  void place_legend() {
    const std::size_t count = plot_.series.size();
    if (!has_words_ || (count < 2 && !has_hollow_points())) return;
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {},
                             [&](std::size_t i) { return rank_of_part(plot_.series[i].name); });
    if (has_hollow_points()) order.push_back(count);
    double x = kMargin, y = 30;
    for (const std::size_t i : order) {
      const double width = 18 + width_of(legend_text(i)) + 16;
      if (x > kMargin && x + width > kFullWidth) {
        x = kMargin;
        y += 18;
      }
      legend_.push_back({i, x, y});
      x += width;
    }
  }

  /// After those of the series, an entry for hollow points.
  [[nodiscard]] std::string_view legend_text(std::size_t entry) const {
    return entry < plot_.series.size() ? std::string_view(plot_.series[entry].name) : kHollow;
  }

  [[nodiscard]] bool has_hollow_points() const {
    return std::ranges::any_of(plot_.series, [](const PlotSeries& series) {
      return std::ranges::any_of(series.points, &PlotPoint::is_hollow);
    });
  }

  void place_frame() {
    if (!has_words_) {
      width_ = kThumbnailWidth;
      height_ = kThumbnailHeight;
      left_ = top_ = 6;
      right_ = width_ - 6;
      bottom_ = height_ - 6;
      return;
    }
    width_ = kFullWidth;
    constexpr double kRow = 28, kLines = 250, kMaxLabel = 280;
    double beside = 0;  // width to the left of the frame
    for (const double mark : value_marks_) beside = std::max(beside, width_of(mark_text(mark)));
    left_ = has_rows_ ? kMargin + 8 + std::min(widest_label(), kMaxLabel) : 34 + beside;
    right_ = kFullWidth - kMargin;
    constexpr double kLimitName = 14;
    top_ = (legend_.empty() ? 34 : legend_.back().y + 26) + (plot_.limit ? kLimitName : 0);
    const auto rows = static_cast<double>(std::max<std::size_t>(plot_.categories.size(), 2));
    bottom_ = top_ + (has_rows_ ? kRow * rows : kLines);
    height_ = bottom_ + (label_below().empty() ? 30 : 50);
  }

  /// The axis label below the frame.
  [[nodiscard]] const std::string& label_below() const {
    return is_bars_ && has_rows_ ? plot_.y_label : plot_.x_label;
  }

  [[nodiscard]] double max_value() const {
    double max = plot_.limit ? plot_.limit->value : 0;
    std::vector<double> stacked(plot_.categories.size());
    for (const PlotSeries& series : plot_.series) {
      for (const PlotSpan& span : series.spans) max = std::max(max, span.end);
      for (std::size_t i = 0; i < series.points.size(); ++i) {
        max = std::max({max, series.points[i].high, series.points[i].y});
        if (i < stacked.size()) max = std::max(max, stacked[i] += series.points[i].y);
      }
    }
    return max;
  }

  [[nodiscard]] double min_value() const {
    double min = max_value();
    for (const PlotSeries& series : plot_.series) {
      for (const PlotPoint& point : series.points) min = std::min(min, point.y);
    }
    return min;
  }

  /// Values that differ much are only readable on a logarithmic axis. It has no zero for bars to
  /// begin at, so they are dots there.
  [[nodiscard]] bool has_log_values() const {
    constexpr double kVeryDifferent = 30;
    if (!is_bars_) return plot_.log_y;
    const double min = min_value();
    return plot_.series.size() == 1 && min > 0 && max_value() / min > kVeryDifferent;
  }

  void set_values() {
    const double max = max_value();
    if (plot_.is_timeline) {
      values_.high = std::max(max, 1e-9);
      value_marks_ = round_marks(0, values_.high, 6);
      while (value_marks_.back() > values_.high) value_marks_.pop_back();
      return;
    }
    values_.is_log = has_log_values();
    if (values_.is_log) {
      value_marks_ = max > 0 ? decade_marks(min_value(), max) : std::vector<double>{1, 10};
      values_.low = value_marks_.front();
    } else {
      value_marks_ = round_marks(0, max > 0 ? max : 1, 5);
    }
    values_.high = value_marks_.back();
  }

  void set_ends_of_values() {
    values_.from = has_rows_ ? left_ : bottom_;
    values_.to = has_rows_ ? right_ : top_;
    if (!is_bars_ || !has_rows_ || !has_words_) return;
    double beside = 0;
    for (std::size_t i = 0; i < plot_.categories.size(); ++i) {
      beside = std::max(beside, width_of(bar_text(i)));
    }
    values_.to -= std::min(beside + 8, 0.4 * (right_ - left_));
  }

  void set_places() {
    if (!plot_.categories.empty()) {
      const double last = static_cast<double>(plot_.categories.size()) - 0.5;
      places_ =
          has_rows_ ? PlotAxis{-0.5, last, top_, bottom_} : PlotAxis{-0.5, last, left_, right_};
      return;
    }
    for (const PlotSeries& series : plot_.series) {
      for (const PlotPoint& point : series.points) xs_.insert(point.x);
    }
    if (xs_.empty()) xs_.insert(plot_.log_x ? 1 : 0);
    constexpr std::size_t kMaxMarkedPoints = 10;
    if (plot_.log_x && (xs_.size() > kMaxMarkedPoints || are_crowded())) {
      const std::vector<double> marks = decade_marks(*xs_.begin(), *xs_.rbegin());
      xs_ = {marks.begin(), marks.end()};
    }
    places_ = {*xs_.begin(), *xs_.rbegin(), left_ + 12, right_ - 12, plot_.log_x};
    if (places_.low == places_.high) places_.high = places_.low + 1;
  }

  /// Whether marks at all points would overlap.
  [[nodiscard]] bool are_crowded() const {
    constexpr double kApart = 1.05;
    if (xs_.size() < 2) return false;
    const double decades = std::log(*xs_.rbegin() / *xs_.begin());
    return std::adjacent_find(xs_.begin(), xs_.end(), [&](double a, double b) {
             return std::log(b / a) < decades * (kApart - 1);
           }) != xs_.end();
  }

  /// A mark, unless its text would overlap the one before it, which ends at `end`.
  void draw_mark_below(double x, const std::string& text, double& end) {
    const double half = width_of(text) / 2;
    if (x - half < end + 4) return;
    body_ += label(x, bottom_ + 18, "middle", text);
    end = x + half;
  }

  void draw_value_axis() {
    double end = 0;
    for (const double mark : value_marks_) {
      const double place = values_.at(mark);
      if (has_rows_) {
        body_ += line(place, top_, place, bottom_, "bs-grid");
        draw_mark_below(place, mark_text(mark), end);
      } else {
        body_ += line(left_, place, right_, place, "bs-grid");
        body_ += label(left_ - 8, place + 4, "end", mark_text(mark));
      }
    }
    if (has_rows_) return;
    body_ += fmt::format(
        R"svg(<text transform="translate(18 {:.1f}) rotate(-90)" text-anchor="middle" class="bs-text">{}</text>)svg",
        (top_ + bottom_) / 2, xml_text(plot_.y_label));
  }

  void draw_place_axis() {
    if (!label_below().empty()) {
      body_ += label((left_ + right_) / 2, height_ - 12, "middle", label_below());
    }
    for (std::size_t i = 0; i < plot_.categories.size(); ++i) {
      const double place = places_.at(static_cast<double>(i));
      body_ += has_rows_ ? label(left_ - 8, place + 4, "end", plot_.categories[i])
                         : label(place, bottom_ + 18, "middle", plot_.categories[i]);
    }
    if (!plot_.categories.empty()) return;
    const std::vector<double> marks = plot_.log_x ? std::vector<double>(xs_.begin(), xs_.end())
                                                  : round_marks(places_.low, places_.high, 6);
    double end = 0;
    for (const double mark : marks) {
      if (mark < places_.low || mark > places_.high) continue;
      draw_mark_below(places_.at(mark), mark_text(mark), end);
    }
  }

  void draw_axis_line() {
    body_ += has_rows_ ? line(left_, top_, left_, bottom_, "bs-axis")
                       : line(left_, bottom_, right_, bottom_, "bs-axis");
  }

  void draw_error_bar(double place, const PlotPoint& point) {
    if (point.low == point.high || !has_words_) return;
    const double low = values_.at(std::max(values_.low, point.low)), high = values_.at(point.high);
    const auto draw = [&](double from, double value, double to, double other) {
      body_ += has_rows_ ? line(value, from, other, to, "bs-error")
                         : line(from, value, to, other, "bs-error");
    };
    draw(place, low, place, high);
    draw(place - 4, low, place + 4, low);
    draw(place - 4, high, place + 4, high);
  }

  void draw_series(std::size_t number) {
    const PlotSeries& series = plot_.series[number];
    std::string places;
    for (const PlotPoint& point : series.points) {
      places += fmt::format("{:.1f},{:.1f} ", places_.at(point.x), values_.at(point.y));
    }
    if (series.style != SeriesStyle::kMarks) {
      body_ +=
          fmt::format(R"(<polyline points="{}" class="bs-line bs-c{}{}"/>)", places,
                      colors_[number], series.style == SeriesStyle::kDashed ? " bs-dashed" : "");
    }
    if (series.style == SeriesStyle::kLine || series.style == SeriesStyle::kDashed) return;
    for (const PlotPoint& point : series.points) {
      draw_error_bar(places_.at(point.x), point);
      draw_dot(places_.at(point.x), values_.at(point.y), number, point.is_hollow);
    }
  }

  void draw_dot(double x, double y, std::size_t series, bool is_hollow) {
    body_ +=
        fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="{}" class="{}{}"/>)", x, y,
                    has_words_ ? 4 : 2, is_hollow ? "bs-hollow bs-c" : "bs-f", colors_[series]);
  }

  void draw_bar(std::size_t category, double from, double to, std::size_t series) {
    const double place = places_.at(static_cast<double>(category));
    const double size =
        0.6 * std::abs(places_.to - places_.from) / static_cast<double>(plot_.categories.size());
    const double begin = values_.at(from), end = values_.at(to);
    if (values_.is_log) {
      draw_dot(has_rows_ ? end : place, has_rows_ ? place : end, series, false);
      return;
    }
    const std::string style = fmt::format("bs-f{}", colors_[series]);
    body_ += has_rows_ ? rectangle(begin, place - size / 2, end - begin, size, style)
                       : rectangle(place - size / 2, end, size, begin - end, style);
  }

  /// The value of a single bar. For a stack, the parts that are too thin to be seen, or their
  /// number and sum if they are many; if all parts are too thin, only the sum.
  [[nodiscard]] std::string bar_text(std::size_t category) const {
    constexpr double kThin = 0.006;  // share of the axis, about 3 pixels
    constexpr std::size_t kMaxNamed = 2;
    const std::string unit = plot_.y_label.substr(0, plot_.y_label.find(' '));  // "ms a step"
    std::vector<std::string> thin;
    double sum = 0;
    bool all_are_thin = true;
    for (const PlotSeries& series : plot_.series) {
      for (const PlotPoint& point : series.points) {
        if (static_cast<std::size_t>(point.x) != category || point.y <= 0) continue;
        if (plot_.series.size() == 1) return value_text(point.y);
        if (point.y > kThin * values_.high) {
          all_are_thin = false;
          continue;
        }
        thin.push_back(fmt::format("{} {} {}", series.name, value_text(point.y), unit));
        sum += point.y;
      }
    }
    if (thin.empty()) return "";
    if (all_are_thin) return value_text(sum);
    if (thin.size() <= kMaxNamed) return fmt::format("+ {}", fmt::join(thin, ", "));
    return fmt::format("+ {} thinner parts, together {} {}", thin.size(), value_text(sum), unit);
  }

  void draw_bars() {
    std::vector<double> ends(plot_.categories.size(), values_.low);
    std::vector<double> text_from = ends;
    for (std::size_t number = 0; number < plot_.series.size(); ++number) {
      for (const PlotPoint& point : plot_.series[number].points) {
        const auto category = static_cast<std::size_t>(point.x);
        double& end = ends.at(category);
        const double to = values_.is_log ? point.y : end + point.y;
        draw_bar(category, end, to, number);
        if (plot_.series.size() == 1) draw_error_bar(places_.at(point.x), point);
        end = to;
        text_from.at(category) = std::max(to, plot_.series.size() == 1 ? point.high : to);
      }
    }
    if (!has_words_) return;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      const double place = places_.at(static_cast<double>(i)), at = values_.at(text_from[i]);
      const std::string text = bar_text(i);
      if (text.empty()) continue;
      body_ += has_rows_ ? label(at + 6, place + 4, "start", text, "bs-small")
                         : label(place, at - 5, "middle", text, "bs-small");
    }
  }

  void draw_limit() {
    if (!plot_.limit) return;
    const double at = values_.at(plot_.limit->value);
    const double right = has_rows_ ? at : right_, top = has_rows_ ? top_ : at;
    body_ +=
        line(has_rows_ ? at : left_, top, right, has_rows_ ? bottom_ : at, "bs-error bs-dashed");
    if (has_words_) body_ += label(right, top - 4, "end", plot_.limit->name, "bs-small");
  }

  void draw_timeline() {
    const double height = (bottom_ - top_) / static_cast<double>(plot_.categories.size());
    for (std::size_t number = 0; number < plot_.series.size(); ++number) {
      for (const PlotSpan& span : plot_.series[number].spans) {
        body_ += rectangle(values_.at(span.begin),
                           top_ + height * (static_cast<double>(span.row) + 0.15),
                           values_.at(span.end) - values_.at(span.begin), 0.7 * height,
                           fmt::format("bs-f{} bs-edge", colors_[number]), span.note);
      }
    }
  }

  void draw_legend() {
    for (const LegendEntry& entry : legend_) {
      if (entry.series == plot_.series.size()) {
        body_ += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="4" class="bs-hollow bs-axis"/>)",
                             entry.x + 6, entry.y + 6);
      } else {
        body_ += rectangle(entry.x, entry.y, 12, 12, fmt::format("bs-f{}", colors_[entry.series]));
      }
      body_ += label(entry.x + 18, entry.y + 10, "start", legend_text(entry.series));
    }
  }

  const Plot& plot_;
  bool has_words_;
  bool is_bars_ = false;
  bool has_rows_ = false;  // categories are rows, and values grow to the right
  std::vector<std::size_t> colors_;
  std::vector<LegendEntry> legend_;
  double width_ = 0, height_ = 0, left_ = 0, right_ = 0, top_ = 0, bottom_ = 0;
  PlotAxis values_, places_;
  std::set<double> xs_;
  std::vector<double> value_marks_;
  std::string body_;
};

/// Rules for the classes of plots.
std::string style_sheet() {
  std::string style = R"(.bs-plot{max-width:720px;width:100%}
.bs-plot,.bs-thumbnail{font-family:system-ui,sans-serif}
.bs-card{fill:#fff}.bs-text{fill:#333;font-size:12px}.bs-small{fill:#333;font-size:11px}
.bs-title{fill:#111;font-weight:600;font-size:14px}
.bs-grid{stroke:#ddd}.bs-axis{stroke:#666}.bs-error{stroke:#333;stroke-width:1.2}
.bs-hollow{fill:#fff;stroke-width:2}.bs-edge{stroke:#fff;stroke-width:.5}.bs-line{fill:none;stroke-width:2}.bs-dashed{stroke-dasharray:6 4}
)";
  for (std::size_t i = 0; i < kColors.size(); ++i) {
    style += fmt::format(".bs-c{0}{{stroke:{1}}}.bs-f{0}{{fill:{1}}}\n", i, kColors.at(i));
  }
  return style;
}

}  // namespace

std::string dark_plot_style() {
  std::string style = R"(@media screen and (prefers-color-scheme:dark){
:root .bs-card,:root .bs-hollow{fill:#1c1c1c}:root .bs-text,:root .bs-small,:root .bs-title{fill:#e6e6e6}
:root .bs-grid{stroke:#444}:root .bs-axis{stroke:#aaa}:root .bs-error{stroke:#e6e6e6}:root .bs-edge{stroke:#1c1c1c}
)";
  // Of the colors, those that are as dark as the card.
  constexpr std::pair<int, std::string_view> kLighter[] = {
      {8, "#b57edc"}, {9, "#e0315a"}, {10, "#7d9cc0"}};
  for (const auto& [color, lighter] : kLighter) {
    style +=
        fmt::format(":root .bs-c{0}{{stroke:{1}}}:root .bs-f{0}{{fill:{1}}}\n", color, lighter);
  }
  return style + "}\n";
}

std::string svg_of(const Plot& plot, PlotSize size) {
  std::string svg = Drawing(plot, size).text();
  svg.insert(svg.find('>') + 1, fmt::format("<style>{}</style>", style_sheet()));
  return svg;
}

std::vector<double> round_marks(double low, double high, int count) {
  const double rough = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double digits = rough / power;
  const double step = power * (digits <= 1 ? 1 : digits <= 2 ? 2 : digits <= 5 ? 5 : 10);
  std::vector<double> marks;
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  for (double i = first; i <= last; ++i) marks.push_back(i * step);
  return marks;
}

std::string xml_text(std::string_view text) {
  constexpr std::string_view kSpecial = "&<>\"";
  constexpr std::array kEscapes = {"&amp;", "&lt;", "&gt;", "&quot;"};
  std::string safe;
  for (const char c : text) {
    const std::size_t special = kSpecial.find(c);
    if (special < kEscapes.size()) {
      safe += kEscapes.at(special);
    } else {
      safe += c;
    }
  }
  return safe;
}

}  // namespace barestep
