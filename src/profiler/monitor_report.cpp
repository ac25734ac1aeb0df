#include "profiler/monitor_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/text_table.h"
#include "core/units.h"

namespace barestep {
namespace {

constexpr double kSteadyClock = 1.02;

std::string number(const Gauge& gauge, double value) {
  if (!std::isfinite(value)) return "-";
  if (gauge.kind == GaugeKind::kReasons) {
    return fmt::format("{:#x}", static_cast<std::uint64_t>(value));
  }
  return fmt::format("{:.{}f}", value, gauge.decimals);
}

std::string cell(std::string_view title, std::string_view text) {
  return fmt::format("  {:>{}}", text, std::max<std::size_t>(6, title.size()));
}

/// Calls visit(gauge, values) for each gauge; the parts of a list come together.
template <class Visit>
void by_name(std::span<const Gauge> gauges, std::span<const double> values, const Visit& visit) {
  for (std::size_t first = 0, next = 0; first < gauges.size(); first = next) {
    next = first + 1;
    while (next < gauges.size() && gauges[next].is_part && gauges[next].name == gauges[first].name)
      ++next;
    visit(gauges[first], values.subspan(first, next - first));
  }
}

std::string json_number(double value) {
  return std::isfinite(value) ? fmt::format("{:.7g}", value) : "null";
}

std::string reasons_of(const Gauge& gauge, std::uint64_t bits) {
  std::vector<std::string_view> reasons;
  for (std::size_t bit = 0; bit < gauge.reasons.size(); ++bit) {
    const bool is_set = (bits >> bit & 1U) != 0;
    if (is_set && !gauge.reasons[bit].empty()) reasons.push_back(gauge.reasons[bit]);
  }
  return fmt::format("{}", fmt::join(reasons, ", "));
}

std::string energy_text(const SourceSummary& summary, std::int64_t samples) {
  const std::optional<double> joules = summary.energy_j();
  if (!joules || samples <= 0) return "";
  return fmt::format("  {} took {:.3f} J in {:.3f} s, {:.4g} J a sample\n", summary.name, *joules,
                     summary.end_s - summary.begin_s, *joules / static_cast<double>(samples));
}

}  // namespace

std::string monitor_titles(const MonitorSource& source) {
  std::string line = fmt::format("# {:<7}{}", "monitor", cell("seconds", "seconds"));
  for (const Gauge& gauge : source.gauges()) {
    if (!gauge.column.empty()) line += cell(gauge.column, gauge.column);
  }
  return line;
}

std::string monitor_line(const MonitorSource& source, const MonitorSample& sample, double start_s) {
  std::string line = fmt::format("  {:<7}{}", source.name(),
                                 cell("seconds", fmt::format("{:.1f}", sample.at_s - start_s)));
  for (std::size_t i = 0; i < sample.values.size(); ++i) {
    const Gauge& gauge = source.gauges()[i];
    if (!gauge.column.empty()) line += cell(gauge.column, number(gauge, sample.values[i]));
  }
  return line;
}

std::vector<std::string> monitor_marks(const SourceSummary& summary) {
  std::vector<std::string> marks;
  for (std::size_t i = 0; i < summary.gauges.size(); ++i) {
    const Gauge& gauge = summary.gauges[i];
    const GaugeSummary& value = summary.values[i];
    if (value.count == 0) continue;
    if (gauge.kind == GaugeKind::kClock && value.most > kSteadyClock * value.least) {
      marks.push_back(fmt::format("a clock of {} moved: {} from {} to {}", summary.name,
                                  gauge.column, number(gauge, value.least),
                                  number(gauge, value.most)));
    } else if (gauge.kind == GaugeKind::kOthers && value.most > 0) {
      marks.push_back(fmt::format("other processes used {} too: up to {}", summary.name,
                                  number(gauge, value.most)));
    } else if (gauge.kind == GaugeKind::kReasons) {
      const std::string reasons = reasons_of(gauge, value.bits);
      if (!reasons.empty())
        marks.push_back(fmt::format("{} was held back: {}", summary.name, reasons));
    }
  }
  return marks;
}

std::string monitor_summary(std::span<const SourceSummary> summaries, std::int64_t samples) {
  if (summaries.empty()) return "";
  TextTable table({{"", Align::kLeft},
                   {"", Align::kLeft},
                   {"mean", Align::kRight},
                   {"least", Align::kRight},
                   {"most", Align::kRight}});
  std::string behind;
  double joules = 0;
  int with_energy = 0;
  for (const SourceSummary& summary : summaries) {
    for (std::size_t i = 0; i < summary.gauges.size(); ++i) {
      const Gauge& gauge = summary.gauges[i];
      const GaugeSummary& value = summary.values[i];
      const bool counts = !gauge.column.empty() && gauge.kind != GaugeKind::kReasons;
      if (!counts || value.count == 0) continue;
      table.add_row({summary.name, gauge.column, number(gauge, value.mean()),
                     number(gauge, value.least), number(gauge, value.most)});
    }
    behind += energy_text(summary, samples);
    for (const std::string& mark : monitor_marks(summary)) {
      behind += fmt::format("  MARKED: {}\n", mark);
    }
    if (!summary.trouble.empty()) {
      behind += fmt::format("  Note: {}: {}\n", summary.name, summary.trouble);
    }
    if (summary.energy_j()) ++with_energy;
    joules += summary.energy_j().value_or(0);
  }
  if (with_energy > 1 && samples > 0) {
    behind += fmt::format("  Together {:.3f} J, {:.4g} J a sample\n", joules,
                          joules / static_cast<double>(samples));
  }
  const SourceSummary& first = summaries.front();
  return fmt::format("Monitor, {} in {:.1f} s after warm-up\n{}{}", counted(first.looks, "look"),
                     first.end_s - first.begin_s, table.text(2), behind);
}

std::string monitor_record(const MonitorSource& source, const MonitorSample& sample, int rank,
                           double start_s) {
  std::string record = fmt::format(R"({{"monitor": "{}", "rank": {}, "seconds": {:.4f})",
                                   source.name(), rank, sample.at_s - start_s);
  by_name(source.gauges(), sample.values, [&](const Gauge& gauge, std::span<const double> values) {
    std::vector<std::string> numbers;
    for (const double value : values) numbers.push_back(json_number(value));
    record += fmt::format(R"(, "{}": {}{}{})", gauge.name, gauge.is_part ? "[" : "",
                          fmt::join(numbers, ", "), gauge.is_part ? "]" : "");
  });
  return record + "}";
}

std::string monitor_summary_record(const SourceSummary& summary, std::int64_t samples, int rank) {
  const std::optional<double> joules = summary.energy_j();
  std::vector<std::string> marks;
  for (const std::string& mark : monitor_marks(summary)) marks.push_back(json_string(mark));
  std::string record =
      fmt::format(R"({{"monitor_summary": "{}", "rank": {}, "looks": {}, "seconds": {:.4f}, )",
                  summary.name, rank, summary.looks, summary.end_s - summary.begin_s);
  const bool known = joules && samples > 0;
  return record + fmt::format(R"("energy_j": {}, "energy_j_per_sample": {}, "marks": [{}]}})",
                              known ? json_number(*joules) : "null",
                              known ? json_number(*joules / static_cast<double>(samples)) : "null",
                              fmt::join(marks, ", "));
}

void add_monitor(TraceEvents& events, const Monitor& monitor, TraceRow row, double begin_s,
                 double end_s) {
  for (const MonitorSample& sample : monitor.kept()) {
    if (sample.at_s < begin_s || sample.at_s > end_s) continue;
    const MonitorSource& source = monitor.source(sample.source);
    by_name(source.gauges(), sample.values,
            [&](const Gauge& gauge, std::span<const double> values) {
              std::vector<std::string> parts;
              for (std::size_t i = 0; i < values.size(); ++i) {
                if (!std::isfinite(values[i])) continue;
                parts.push_back(fmt::format(R"("{}": {})", i, json_number(values[i])));
              }
              if (parts.empty()) return;
              events.counter(fmt::format("{} {}", source.name(), gauge.name), row,
                             events.ns(sample.at_s), fmt::format("{}", fmt::join(parts, ", ")));
            });
  }
}

}  // namespace barestep
