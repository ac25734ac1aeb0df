#include "profiler/monitor_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

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

/// Null for what could not be told.
TraceJson json_number(double value) {
  constexpr double kMostExact = 1LL << 53;
  if (!std::isfinite(value)) return {};
  const bool is_whole = std::trunc(value) == value && std::abs(value) < kMostExact;
  return is_whole ? TraceJson(static_cast<std::int64_t>(value)) : TraceJson(value);
}

std::string line_of(const TraceJson& record) {
  return record.dump(-1, ' ', false, TraceJson::error_handler_t::replace);
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
  TraceJson record = {
      {"monitor", source.name()}, {"rank", rank}, {"seconds", sample.at_s - start_s}};
  by_name(source.gauges(), sample.values, [&](const Gauge& gauge, std::span<const double> values) {
    TraceJson numbers = TraceJson::array();
    for (const double value : values) numbers.push_back(json_number(value));
    record[gauge.name] = gauge.is_part ? numbers : numbers.front();
  });
  return line_of(record);
}

std::string monitor_summary_record(const SourceSummary& summary, std::int64_t samples, int rank) {
  const double joules = summary.energy_j().value_or(std::numeric_limits<double>::quiet_NaN());
  const double of_a_sample = samples > 0 ? joules / static_cast<double>(samples)
                                         : std::numeric_limits<double>::quiet_NaN();
  return line_of({{"monitor_summary", summary.name},
                  {"rank", rank},
                  {"looks", summary.looks},
                  {"seconds", summary.end_s - summary.begin_s},
                  {"energy_j", samples > 0 ? json_number(joules) : TraceJson()},
                  {"energy_j_per_sample", json_number(of_a_sample)},
                  {"marks", monitor_marks(summary)}});
}

void add_monitor(TraceEvents& events, const Monitor& monitor, TraceRow row, double begin_s,
                 double end_s) {
  for (const MonitorSample& sample : monitor.kept()) {
    if (sample.at_s < begin_s || sample.at_s > end_s) continue;
    const MonitorSource& source = monitor.source(sample.source);
    by_name(source.gauges(), sample.values,
            [&](const Gauge& gauge, std::span<const double> values) {
              TraceJson parts;
              for (std::size_t i = 0; i < values.size(); ++i) {
                if (std::isfinite(values[i])) parts[std::to_string(i)] = json_number(values[i]);
              }
              if (parts.is_null()) return;
              events.counter(fmt::format("{} {}", source.name(), gauge.name), row,
                             events.ns(sample.at_s), parts);
            });
  }
}

}  // namespace barestep
