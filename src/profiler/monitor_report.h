// What a monitor saw as text: lines while a run goes on, a summary, metrics, counters of a trace.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "profiler/monitor.h"
#include "profiler/trace.h"

namespace barestep {

/// The titles of a source's columns, and its values at one look under them, as nvidia-smi dmon
/// prints them; "-" for what it could not tell. Without a newline.
std::string monitor_titles(const MonitorSource& source);
std::string monitor_line(const MonitorSource& source, const MonitorSample& sample, double start_s);

/// Why the figures of a run are to be taken with care: clocks that moved by more than 2 %, foreign
/// processes, throttling. One phrase each.
std::vector<std::string> monitor_marks(const SourceSummary& summary);

/// Mean, least and most of every gauge, energy in all and for each of `samples`, and the marks.
std::string monitor_summary(std::span<const SourceSummary> summaries, std::int64_t samples);

/// One line of JSON each: what a source told at one look, null where it could not; and what its
/// window came to.
std::string monitor_record(const MonitorSource& source, const MonitorSample& sample, int rank,
                           double start_s);
std::string monitor_summary_record(const SourceSummary& summary, std::int64_t samples, int rank);

/// Adds a counter for each gauge in the host's `row`, from `begin_s` to `end_s`.
void add_monitor(TraceEvents& events, const Monitor& monitor, TraceRow row, double begin_s,
                 double end_s);

}  // namespace barestep
