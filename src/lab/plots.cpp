#include "lab/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "core/index.h"
#include "lab/findings.h"
#include "lab/workload.h"

namespace barestep {
namespace {

double roof_at(const MachineCard& card, double flops_per_byte) {
  return std::min(card.flops_per_s, card.memory_bytes_per_s * flops_per_byte);
}

/// The work of all nodes of a program that an op's time is of.
Cost cost_of_op(const Program& program, const OpTime& op) {
  Cost cost;
  for (const Node& node : program.nodes()) {
    if (label_of(node.op) == op.name && name_of(node.phase) == op.phase && node.layer == op.layer) {
      cost += cost_of(node.op);
    }
  }
  return cost;
}

/// When the last of what a node waits for is done.
double ready_s(const Node& node, const SimulatedStep& step) {
  double ready = 0;
  for (const Wait& wait : node.waits) {
    if (wait.steps_back > 0) continue;
    ready = std::max(ready, at(step.spans, wait.node).end_s);
  }
  return ready;
}

}  // namespace

std::vector<RooflinePoint> roofline_points(const Measurement& each, const MachineCard& card) {
  const WorkloadPrograms programs(each.workload());
  std::vector<RooflinePoint> points;
  for (const OpTime& op : each.ops()) {
    const Cost cost = cost_of_op(programs.step(), op);
    if (cost.flops == 0 || cost.bytes == 0 || op.seconds <= 0) continue;
    RooflinePoint point{
        .op = op.name,
        .flops_per_byte = static_cast<double>(cost.flops) / static_cast<double>(cost.bytes),
        .flops_per_s = static_cast<double>(cost.flops) / op.seconds};
    point.share_of_roof = point.flops_per_s / roof_at(card, point.flops_per_byte);
    points.push_back(std::move(point));
  }
  return points;
}

Plot roofline_plot(const std::vector<RooflinePoint>& points, const MachineCard& card) {
  std::map<std::string, PlotSeries> by_op;
  const double ridge = card.flops_per_s / card.memory_bytes_per_s;
  double least = ridge, most = ridge;
  for (const RooflinePoint& point : points) {
    PlotSeries& series = by_op[point.op];
    series.name = point.op;
    series.style = SeriesStyle::kMarks;
    series.points.push_back(plot_point(point.flops_per_byte, 1e-9 * point.flops_per_s));
    least = std::min(least, point.flops_per_byte);
    most = std::max(most, point.flops_per_byte);
  }
  PlotSeries roof{.name = "roof, measured here", .style = SeriesStyle::kLine};
  for (const double x : {least / 2, ridge, 2 * most}) {
    roof.points.push_back(plot_point(x, 1e-9 * roof_at(card, x)));
  }
  Plot plot{.title = "Roofline of the ops of a step",
            .x_label = "flops a byte",
            .y_label = "GFLOP/s",
            .log_x = true,
            .log_y = true,
            .series = {roof}};
  for (auto& [op, series] : by_op) plot.series.push_back(std::move(series));
  return plot;
}

Plot timeline_plot(const Workload& workload, const SimulatedStep& step, std::string title) {
  const WorkloadPrograms programs(workload);
  Plot plot{.title = std::move(title),
            .x_label = "ms since the step began",
            .is_timeline = true,
            .categories = {"computing"}};
  std::map<Phase, PlotSeries> phases;
  PlotSeries waits{.name = "ready, waits its turn"}, reduces{.name = "reduced"};
  std::size_t buckets = 0;
  for (std::size_t i = 0; i < step.spans.size(); ++i) {
    const Node& node = programs.step().nodes()[i];
    const NodeSpan& span = step.spans[i];
    if (node.phase == Phase::kData) continue;
    if (node.lane == Lane::kCompute) {
      phases[node.phase].spans.push_back({0, 1e3 * span.begin_s, 1e3 * span.end_s});
    } else if (const auto* collective = std::get_if<Collective>(&node.op)) {
      const auto& tensors = std::visit(
          [](const auto& op) -> const std::vector<Tensor>& { return op.tensors; }, *collective);
      constexpr std::int64_t kScalars = 16;  // the loss, and whether a rank wants to stop
      const std::size_t row = plot.categories.size();
      const bool is_bucket = tensors.front().bytes() > kScalars;
      plot.categories.push_back(is_bucket ? fmt::format("bucket {}", ++buckets) : "loss");
      waits.spans.push_back({row, 1e3 * ready_s(node, step), 1e3 * span.begin_s});
      reduces.spans.push_back({row, 1e3 * span.begin_s, 1e3 * span.end_s});
    }
  }
  for (auto& [phase, series] : phases) {
    series.name = std::string(name_of(phase));
    plot.series.push_back(std::move(series));
  }
  plot.series.push_back(std::move(waits));
  plot.series.push_back(std::move(reduces));
  return plot;
}

namespace {

constexpr double kWidth = 720, kHeight = 360;
constexpr double kLeft = 80, kRight = 540, kTop = 36, kBottom = 300;

/// From numbers to places, on one axis.
struct Axis {
  double low = 0, high = 1;
  double from = 0, to = 1;  // places of the ends
  bool is_log = false;

  [[nodiscard]] double at(double value) const {
    const auto scaled = [this](double x) { return is_log ? std::log(x) : x; };
    return from + (to - from) * (scaled(value) - scaled(low)) / (scaled(high) - scaled(low));
  }
};

std::string line(double x1, double y1, double x2, double y2, std::string_view style) {
  return fmt::format(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>)", x1,
                     y1, x2, y2, style);
}

std::string label(double x, double y, std::string_view anchor, std::string_view text,
                  std::string_view style = "bs-text") {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>)", x, y,
                     anchor, style, xml_text(text));
}

/// 1, 2 and 5 times powers of ten, or where they are many powers alone, from at most `low` to at
/// least `high`, which are above 0.
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

class Drawing {
 public:
  explicit Drawing(const Plot& plot) : plot_(plot) {
    set_y_axis();
    if (plot.is_timeline) {
      x_ = {0, std::max(last_end(), 1e-9), kLeft, kRight};
    } else if (plot.categories.empty()) {
      set_x_axis();
    } else {
      x_ = {-0.5, static_cast<double>(plot.categories.size()) - 0.5, kLeft, kRight};
    }
  }

  std::string text() {
    body_ = fmt::format(
        R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" class="bs-plot" aria-label="{}">)",
        kWidth, kHeight, xml_text(plot_.title));
    body_ += label(kLeft, 20, "start", plot_.title, "bs-title");
    if (!plot_.is_timeline) draw_y_axis();
    draw_x_axis();
    if (plot_.is_timeline) {
      draw_timeline();
    } else if (plot_.categories.empty()) {
      for (std::size_t i = 0; i < plot_.series.size(); ++i) draw_series(i);
    } else {
      draw_bars();
    }
    draw_legend();
    return body_ + "</svg>";
  }

 private:
  [[nodiscard]] double most_y() const {
    double most = 0;
    std::vector<double> stacked(plot_.categories.size());
    for (const PlotSeries& series : plot_.series) {
      for (std::size_t i = 0; i < series.points.size(); ++i) {
        most = std::max({most, series.points[i].high, series.points[i].y});
        if (i < stacked.size()) most = std::max(most, stacked[i] += series.points[i].y);
      }
    }
    return most;
  }

  [[nodiscard]] double last_end() const {
    double last = 0;
    for (const PlotSeries& series : plot_.series) {
      for (const PlotSpan& span : series.spans) last = std::max(last, span.end);
    }
    return last;
  }

  void set_y_axis() {
    y_ = {0, 1, kBottom, kTop};
    const double most = most_y();
    if (!plot_.log_y) {
      y_.high = most > 0 ? round_marks(0, most, 5).back() : 1;
      return;
    }
    double least = most;
    for (const PlotSeries& series : plot_.series) {
      for (const PlotPoint& point : series.points) least = std::min(least, point.y);
    }
    y_marks_ = most > 0 ? decade_marks(least, most) : std::vector<double>{1, 10};
    y_ = {y_marks_.front(), y_marks_.back(), kBottom, kTop, true};
  }

  /// Whether marks at all points would run into each other.
  [[nodiscard]] bool are_crowded() const {
    constexpr double kApart = 1.05;
    if (xs_.size() < 2) return false;
    const double decades = std::log(*xs_.rbegin() / *xs_.begin());
    return std::adjacent_find(xs_.begin(), xs_.end(), [&](double a, double b) {
             return std::log(b / a) < decades * (kApart - 1);
           }) != xs_.end();
  }

  void set_x_axis() {
    for (const PlotSeries& series : plot_.series) {
      for (const PlotPoint& point : series.points) xs_.insert(point.x);
    }
    if (xs_.empty()) xs_.insert(plot_.log_x ? 1 : 0);
    constexpr std::size_t kMostMarkedPoints = 10;
    if (plot_.log_x && (xs_.size() > kMostMarkedPoints || are_crowded())) {
      const std::vector<double> marks = decade_marks(*xs_.begin(), *xs_.rbegin());
      xs_ = {marks.begin(), marks.end()};
    }
    x_ = {*xs_.begin(), *xs_.rbegin(), kLeft + 12, kRight - 12, plot_.log_x};
    if (x_.low == x_.high) x_.high = x_.low + 1;
  }

  void draw_y_axis() {
    for (const double mark : plot_.log_y ? y_marks_ : round_marks(0, y_.high, 5)) {
      body_ += line(kLeft, y_.at(mark), kRight, y_.at(mark), "bs-grid");
      body_ +=
          label(kLeft - 8, y_.at(mark) + 4, "end", mark == 0 ? "0" : fmt::format("{:g}", mark));
    }
    body_ += fmt::format(
        R"svg(<text transform="translate(18 {:.1f}) rotate(-90)" text-anchor="middle" class="bs-text">{}</text>)svg",
        (kTop + kBottom) / 2, xml_text(plot_.y_label));
  }

  void draw_x_axis() {
    body_ += line(kLeft, kBottom, kRight, kBottom, "bs-axis");
    if (!plot_.categories.empty() && !plot_.is_timeline) {
      for (std::size_t i = 0; i < plot_.categories.size(); ++i) draw_category(i);
    } else if (plot_.log_x) {
      for (const double x : xs_)
        body_ += label(x_.at(x), kBottom + 18, "middle", fmt::format("{:g}", x));
    } else {
      for (const double mark : round_marks(x_.low, x_.high, 6)) {
        if (mark < x_.low || mark > x_.high) continue;
        body_ += label(x_.at(mark), kBottom + 18, "middle", fmt::format("{:g}", mark));
      }
    }
    body_ += label((kLeft + kRight) / 2, kHeight - 12, "middle", plot_.x_label);
  }

  /// Many names would run into each other, so they stand on two lines in turn.
  void draw_category(std::size_t i) {
    const double below = plot_.categories.size() > 4 && i % 2 == 1 ? 32 : 18;
    body_ += label(x_.at(static_cast<double>(i)), kBottom + below, "middle", plot_.categories[i]);
  }

  void draw_error_bar(double x, const PlotPoint& point) {
    if (point.low == point.high) return;
    const double low = y_.at(std::max(y_.low, point.low)), high = y_.at(point.high);
    body_ += line(x, low, x, high, "bs-error");
    body_ += line(x - 4, low, x + 4, low, "bs-error");
    body_ += line(x - 4, high, x + 4, high, "bs-error");
  }

  void draw_series(std::size_t number) {
    const PlotSeries& series = plot_.series[number];
    std::string places;
    for (const PlotPoint& point : series.points) {
      places += fmt::format("{:.1f},{:.1f} ", x_.at(point.x), y_.at(point.y));
    }
    if (series.style != SeriesStyle::kMarks) {
      body_ += fmt::format(R"(<polyline points="{}" class="bs-line bs-c{}{}"/>)", places,
                           number % 9, series.style == SeriesStyle::kDashed ? " bs-dashed" : "");
    }
    if (series.style == SeriesStyle::kLine || series.style == SeriesStyle::kDashed) return;
    for (const PlotPoint& point : series.points) {
      draw_error_bar(x_.at(point.x), point);
      body_ += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="4" class="bs-f{}"/>)",
                           x_.at(point.x), y_.at(point.y), number % 9);
    }
  }

  void draw_bars() {
    const double width = 0.6 * (kRight - kLeft) / static_cast<double>(plot_.categories.size());
    std::vector<double> base(plot_.categories.size());
    for (std::size_t number = 0; number < plot_.series.size(); ++number) {
      for (const PlotPoint& point : plot_.series[number].points) {
        double& bottom = base.at(static_cast<std::size_t>(point.x));
        const double top = y_.at(bottom + point.y);
        body_ += fmt::format(
            R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="bs-f{}"/>)",
            x_.at(point.x) - width / 2, top, width, y_.at(bottom) - top, number % 9);
        if (bottom == 0) draw_error_bar(x_.at(point.x), point);
        bottom += point.y;
      }
    }
  }

  void draw_timeline() {
    const double height = (kBottom - kTop) / static_cast<double>(plot_.categories.size());
    const auto top = [&](std::size_t row) { return kTop + height * static_cast<double>(row); };
    for (std::size_t row = 0; row < plot_.categories.size(); ++row) {
      body_ += label(kLeft - 8, top(row) + height / 2 + 4, "end", plot_.categories[row]);
    }
    for (std::size_t number = 0; number < plot_.series.size(); ++number) {
      for (const PlotSpan& span : plot_.series[number].spans) {
        body_ += fmt::format(
            R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="bs-f{} bs-edge"/>)",
            x_.at(span.begin), top(span.row) + 0.15 * height, x_.at(span.end) - x_.at(span.begin),
            0.7 * height, number % 9);
      }
    }
  }

  void draw_legend() {
    for (std::size_t i = 0; i < plot_.series.size(); ++i) {
      const double y = kTop + 8 + 20 * static_cast<double>(i);
      body_ += fmt::format(R"(<rect x="{}" y="{:.1f}" width="12" height="12" class="bs-f{}"/>)",
                           kRight + 16, y, i % 9);
      body_ += label(kRight + 34, y + 10, "start", plot_.series[i].name);
    }
  }

  const Plot& plot_;
  Axis x_, y_;
  std::set<double> xs_;
  std::vector<double> y_marks_;  // of a logarithmic axis
  std::string body_;
};

}  // namespace

std::string svg_of(const Plot& plot) {
  return Drawing(plot).text();
}

std::string_view svg_style() {
  // Okabe and Ito's colours, which people with colour blindness tell apart.
  return R"(.bs-plot{max-width:720px;width:100%;font:12px system-ui,sans-serif}
.bs-text{fill:#333}.bs-title{fill:#111;font-weight:600;font-size:14px}
.bs-grid{stroke:#ddd}.bs-axis{stroke:#666}.bs-error{stroke:#333;stroke-width:1.2}
.bs-edge{stroke:#fff;stroke-width:.5}.bs-line{fill:none;stroke-width:2}.bs-dashed{stroke-dasharray:6 4}
.bs-c0{stroke:#0072b2}.bs-c1{stroke:#d55e00}.bs-c2{stroke:#009e73}.bs-c3{stroke:#cc79a7}.bs-c4{stroke:#e69f00}
.bs-c5{stroke:#56b4e9}.bs-c6{stroke:#b8a800}.bs-c7{stroke:#777}.bs-c8{stroke:#7b3294}
.bs-f0{fill:#0072b2}.bs-f1{fill:#d55e00}.bs-f2{fill:#009e73}.bs-f3{fill:#cc79a7}.bs-f4{fill:#e69f00}
.bs-f5{fill:#56b4e9}.bs-f6{fill:#b8a800}.bs-f7{fill:#777}.bs-f8{fill:#7b3294}
@media screen and (prefers-color-scheme:dark){.bs-text{fill:#ccc}.bs-title{fill:#eee}.bs-grid{stroke:#444}
.bs-axis{stroke:#999}.bs-error{stroke:#ddd}}
)";
}

std::string svg_file_of(const Plot& plot) {
  std::string svg = svg_of(plot);
  svg.insert(svg.find('>') + 1, fmt::format("<style>{}</style>", svg_style()));
  return svg + "\n";
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
  std::string safe;
  for (const char each : text) {
    switch (each) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += each;
    }
  }
  return safe;
}

}  // namespace barestep
