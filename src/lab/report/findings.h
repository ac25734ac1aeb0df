// The results of an experiment as data: sentences, comparisons, tables and plots. Also how
// sentences and tables write numbers: three digits and a unit.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/units.h"
#include "lab/report/comparison.h"
#include "lab/report/samples.h"

namespace barestep {

/// A sentence, or several. Those of an experiment have names, each its own, by which sheets refer
/// to them ({{pipeline.bubble}}), so a further finding changes no sheet.
struct Finding {
  std::string name{};
  std::string text{};
  std::optional<Word> word{};  // of the comparison that it is about

  Finding(std::string without_name)  // NOLINT(google-explicit-constructor)
      : text(std::move(without_name)) {}
  Finding(std::string its_name, std::string its_text, std::optional<Word> its_word = {})
      : name(std::move(its_name)), text(std::move(its_text)), word(its_word) {}

  friend bool operator==(const Finding&, const Finding&) = default;
};

struct FindingTable {
  std::string title{};
  std::string name = "table";  // or it ends in -table
  std::vector<std::string> columns{};
  /// Of a table of cases, the figure of each column, if it is one that sheets know, and the command
  /// of each row's case; otherwise empty.
  std::vector<std::string> figures{}, commands{};
  std::vector<std::vector<std::string>> rows{};
  std::size_t on_screen = 1000;  // rows on a terminal; 0: only its title; a page has all
};

struct PlotPoint {
  double x = 0;
  double y = 0;
  double low = 0;  // ends of the error bar; both equal y if there is none
  double high = 0;
  bool is_hollow = false;  // beyond the cores, so no evidence
};

/// A point, with an error bar if it has an interval; `scale` multiplies both.
inline PlotPoint plot_point(double x, const Estimate& y, double scale = 1) {
  const bool has = y.has_interval();
  return {x, scale * y.median, scale * (has ? y.low : y.median), scale * (has ? y.high : y.median)};
}
inline PlotPoint plot_point(double x, double y) {
  return {x, y, y, y};
}

enum class SeriesStyle { kMarked, kLine, kDashed, kMarks };

/// A time span in a row of a timeline.
struct PlotSpan {
  std::size_t row = 0;
  double begin = 0;
  double end = 0;
  std::string note{};  // what one reads when pointing at it; may be empty
};

struct PlotSeries {
  std::string name{};
  SeriesStyle style = SeriesStyle::kMarked;
  std::vector<PlotPoint> points{};
  std::vector<PlotSpan> spans{};
};

/// A value that bars are compared with, a dashed line across them.
struct PlotLimit {
  std::string name{};
  double value = 0;
};

/// Lines over numbers, or, with `categories`, bars: the series are stacked on each category, and a
/// point's x is the index of its category. A timeline has a row for each category, and spans.
struct Plot {
  std::string title{};
  std::string name = "plot";  // or it ends in -plot
  std::string x_label{};
  std::string y_label{};
  bool log_x = false;  // ticks at the x of the points, if they are few
  bool log_y = false;  // for lines; all y above 0
  bool is_timeline = false;
  std::vector<std::string> categories{};
  std::vector<PlotSeries> series{};
  std::optional<PlotLimit> limit{};  // of bars
};

/// What a run gains from a change of its options: the samples a second with it over those without.
/// Ratios of its measured samples, if the change was made too.
struct PredictedGain {
  std::string key{};                         // of the case with the change
  std::string change{};                      // as one types it
  std::string made_from{};                   // what the prediction rests on, or why there is none
  std::optional<Estimate> step_s{}, gain{};  // predicted
  std::optional<Estimate> measured{};        // the gain

  /// (predicted - measured) / measured; nothing if it lacks one of them.
  [[nodiscard]] std::optional<double> error() const {
    if (!gain || !measured) return std::nullopt;
    return gain->median / measured->median - 1;
  }
};

struct Findings {
  std::vector<Finding> timed{};    // about times, the main one first
  std::vector<Finding> untimed{};  // about bytes, splits and losses, which have no noise
  std::vector<Comparison> comparisons{};
  std::vector<FindingTable> tables{};
  std::vector<Plot> plots{};
  std::vector<PredictedGain> gains{};  // the largest first

  /// The finding with this name; null if there is none.
  [[nodiscard]] const Finding* named(std::string_view name) const;
};

/// Their texts; of all findings, the timed ones first.
std::vector<std::string> texts_of(const std::vector<Finding>& findings);
std::vector<std::string> texts_of(const Findings& findings);

/// The sentences and the tables for a terminal. `rest`: where what it leaves out of tables is.
std::string text_of(const std::vector<std::string>& sentences, const Findings& findings,
                    std::string_view rest = "in the report (--output DIR)");

/// "12.3 ms (12.1 ms to 12.9 ms)"; without an interval "12.3 ms". What is not certain
/// (is_certain()) has two digits: "30 ms (23 ms to 47 ms)".
std::string time_text(const Estimate& seconds);

/// "0.0123 (0.0121 to 0.0129)": seconds, without a unit.
std::string seconds_text(const Estimate& seconds);

/// The sentence about this time, or that there is no conclusion from a time so uncertain.
std::string if_certain(const Estimate& seconds, std::string sentence);

/// "1.85x"; with an interval "1.85x (1.80x to 1.91x)", whose ends are not shown as 1 if it is
/// wholly on one side of it.
std::string factor_text(double factor);
std::string factor_text(const Estimate& factor);

/// "36.2 % (35.0 % to 37.1 %)".
std::string percent_text(const Estimate& share);

/// Simulated figures, with the two digits that their error allows: "8.3 ms", "48 %", "1.7x".
std::string simulated_time(double seconds);
std::string simulated_number(double number);
std::string simulated_percent(double share);
std::string simulated_factor(double factor);
/// What is known of that error: the sentence beside them.
constexpr const char* kSimulationError =
    "Simulated figures have two digits: times by measured rates were off by 4.5 % in the median of "
    "200 runs on two cores; times by data sheets were 12 and 14 % too short on an H200, the only "
    "one compared.";

/// "a", "a and b", "a, b and c".
std::string list_text(const std::vector<std::string>& items);

}  // namespace barestep
