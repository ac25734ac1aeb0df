// A small number added a thousand times in each format: what the sum is, where it stops growing,
// and why. Calculated with the engine's own conversions.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "core/index.h"
#include "core/tensor.h"
#include "core/units.h"
#include "lab/experiments/calculations.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

constexpr float kAddend = 0.01F;
constexpr int kAdditions = 1000;
constexpr double kExactSum = 10;

using Rounding = float (*)(float);

template <class Number>
float in_format(float x) {
  return float_of(rounded<Number>(x));
}

/// A format, its conversion, and the bits of its numbers, the leading 1 included.
struct NumberFormat {
  std::string_view name;
  Rounding round;
  int bits;
};

constexpr NumberFormat kSingleFormat{"fp32", in_format<float>, 24};
constexpr NumberFormat kHalfFormat{"fp16", in_format<F16>, 11};
constexpr NumberFormat kBrainFormat{"bf16", in_format<Bf16>, 8};

/// The format of the numbers, that of their sum, and whether what a sum loses is carried over
/// (Kahan 1965).
struct Adding {
  NumberFormat numbers, sum;
  bool carries = false;

  [[nodiscard]] std::string text() const {
    if (carries) return fmt::format("{} with Kahan's sum", sum.name);
    if (numbers.bits == sum.bits) return std::string(sum.name);
    return fmt::format("{} in an {} sum", numbers.name, sum.name);
  }
};

constexpr std::array<Adding, 7> kWaysToAdd = {{{kSingleFormat, kSingleFormat},
                                               {kHalfFormat, kHalfFormat},
                                               {kBrainFormat, kBrainFormat},
                                               {kHalfFormat, kSingleFormat},
                                               {kBrainFormat, kSingleFormat},
                                               {kHalfFormat, kHalfFormat, true},
                                               {kBrainFormat, kBrainFormat, true}}};

/// The sums after 0, 1, ..., `additions` additions.
std::vector<double> sums_of(const Adding& way, int additions) {
  const Rounding round = way.sum.round;
  const float number = way.numbers.round(kAddend);
  float sum = 0, lost = 0;
  std::vector<double> sums = {0};
  for (int i = 0; i < additions; ++i) {
    const float more = way.carries ? round(number - lost) : number;
    const float next = round(sum + more);
    if (way.carries) lost = round(round(next - sum) - more);
    sum = next;
    sums.push_back(sum);
  }
  return sums;
}

/// Where neighboring numbers are so far apart that half of their distance is no less than the
/// number to add: a power of two. A sum that rounds to nearest stays there.
double standstill(const Adding& way) {
  const float number = way.numbers.round(kAddend);
  double power = 1;
  while (std::ldexp(power, -way.sum.bits) < number) power *= 2;
  return power;
}

/// How far apart a format's numbers are from `power`, a power of two, on.
double spacing(const NumberFormat& format, double power) {
  return std::ldexp(power, 1 - format.bits);
}

/// The additions until the sum stands still; kAdditions if it still grows then.
int additions_before(double stop, const std::vector<double>& sums) {
  int count = 0;
  while (count < kAdditions && at(sums, count) < stop) ++count;
  return count;
}

std::string sum_text(double sum) {
  return fmt::format("{:.6g}", sum);
}

/// Where the sum of one format stops, and why.
std::string stop_text(const Adding& way) {
  const std::vector<double> sums = sums_of(way, kAdditions);
  const double stop = standstill(way);
  const int before = additions_before(stop, sums);
  const std::string why = fmt::format(
      "from there on neighboring numbers are {} apart, and {} is not more than half of that, so "
      "each sum is rounded back",
      sum_text(spacing(way.sum, stop)), kAddend);
  if (before < kAdditions) {
    return fmt::format("In {} the sum is {}: it stops growing after {} additions, since {}.",
                       way.text(), sum_text(sums.back()), grouped(before), why);
  }
  return fmt::format("In {} the sum is {}. It would stop growing at {}: {}.", way.text(),
                     sum_text(sums.back()), grouped(std::llround(stop)), why);
}

FindingTable sums_table() {
  FindingTable table{
      .title = fmt::format("{} added {} times (calculated)", kAddend, grouped(kAdditions)),
      .columns = {"format", "the number", "exact sum of that number", "sum", "error of the sum",
                  "stops growing at", "numbers there are apart"}};
  for (const Adding& way : kWaysToAdd) {
    const double number = way.numbers.round(kAddend), stop = standstill(way);
    const double sum = sums_of(way, kAdditions).back();
    table.rows.push_back({way.text(), fmt::format("{:.8g}", number), sum_text(kAdditions * number),
                          sum_text(sum), fmt::format("{:+.2g}", sum - kExactSum),
                          way.carries ? "" : grouped(std::llround(stop)),
                          way.carries ? "" : sum_text(spacing(way.sum, stop))});
  }
  return table;
}

Plot sums_plot() {
  constexpr int kShownEvery = 20;
  Plot plot{.title = fmt::format("The sum while {} is added (calculated)", kAddend),
            .x_label = "additions",
            .y_label = "sum"};
  for (const Adding& way : {kWaysToAdd[0], kWaysToAdd[1], kWaysToAdd[2], kWaysToAdd[6]}) {
    PlotSeries series{.name = way.text(), .style = SeriesStyle::kLine};
    const std::vector<double> sums = sums_of(way, kAdditions);
    for (int i = 0; i <= kAdditions; i += kShownEvery) {
      series.points.push_back(plot_point(i, at(sums, i)));
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

Findings rounding_findings(const Results& /*results*/) {
  const auto last = [](const Adding& way) { return sum_text(sums_of(way, kAdditions).back()); };
  Findings findings{.tables = {sums_table()}, .plots = {sums_plot()}};
  for (const Adding& way : {kWaysToAdd[2], kWaysToAdd[1], kWaysToAdd[0]}) {
    findings.untimed.push_back({std::string(way.sum.name), stop_text(way)});
  }
  findings.untimed.push_back(
      {"mixed",
       fmt::format("In an fp32 sum, as barestep adds products, losses and gradients, numbers of "
                   "fp16 give {} and those of bf16 {}: what is left is that {} itself is rounded.",
                   last(kWaysToAdd[3]), last(kWaysToAdd[4]), kAddend)});
  findings.untimed.push_back(
      {"kahan", fmt::format("Kahan's sum carries over what each addition loses: in fp16 it gives "
                            "{}, in bf16 {}, the nearest numbers to the exact sum.",
                            last(kWaysToAdd[5]), last(kWaysToAdd[6]))});
  return findings;
}

}  // namespace

Experiment rounding_experiment() {
  return {"rounding",
          "A thousand small additions",
          "0.01 added a thousand times: which format gives 10, and where do sums stop?",
          [](const Setting&) { return std::vector<Case>{}; },
          rounding_findings,
          "fp32 fp16 bf16 mixed kahan table plot"};
}

}  // namespace barestep
