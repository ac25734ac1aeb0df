// A study as files for people and programs.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/report/page.h"
#include "lab/study/experiment.h"
#include "lab/study/study.h"

namespace barestep {

struct ReportSection {
  const Experiment* experiment;
  Results results;
  Findings findings;
  std::string trouble;  // empty, or why the times must not be trusted
};

struct Report {
  std::vector<std::pair<std::string, std::string>> environment;
  std::string options;  // options of mlp_lab run that reproduce it: " --quick"
  double margin = kDefaultMargin;
  std::vector<ReportSection> sections;

  /// Null if this experiment was not measured.
  [[nodiscard]] const ReportSection* section(std::string_view experiment) const;
  /// Only of valid sections in which each step time is certain: predictions are not compared with
  /// disturbed measurements.
  [[nodiscard]] std::vector<const Results*> results() const;
};

/// The findings of an experiment. If none is timed, they are valid however busy the machine was.
/// None about times is valid if one compares ranks that share cores.
ReportSection section_of(const Experiment& experiment, Results results);

/// Those of every experiment that the study has measured. Differences within `margin`, a ratio
/// above 1, are called small. Throws Error(kNoInput) if there is none.
Report report_of(const Study& study, double margin = kDefaultMargin);

/// The texts of a section's findings: those about times, then the others. An invalid section has
/// "No conclusion: " and the reason in place of the former, and then those comparisons whose ratio
/// no disturbance makes (kLargeEffect).
std::vector<std::string> texts_of(const ReportSection& section);

/// For an invalid section, trouble_line() is "INVALID. No conclusion: ...", which pages show
/// separately, and shown_texts() the remaining texts; for a valid one shown_texts() are all.
std::string trouble_line(const ReportSection& section);
std::vector<std::string> shown_texts(const ReportSection& section);

/// The command that reproduces a section: "mlp_lab run NAME".
std::string command_of(const Report& report, const ReportSection& section);

/// The checklist for benchmarks of the starts of all cases: of each item the case that meets it
/// least. Empty without cases that were run here.
std::vector<CheckedItem> checklist_of(const std::vector<const Results*>& measured);

/// The options of the cases: those that all share in the first line, "all: {...}", then for each
/// case the others, "batch-32: {...}". Empty if no case has a configuration.
std::string configurations_of(const Results& results);

/// A summary that fits on a sheet of paper, then the sections.
Page page_of(const Report& report);

std::string csv_of(const Report& report);

/// In the format of docs/results.schema.json.
std::string json_of(const Report& report);

/// Writes report.html, report.md, results.csv, results.json and the plots into the folder. Throws
/// Error: kCannotCreate, kInputOutput.
void write_report(const std::filesystem::path& folder, const Report& report);

}  // namespace barestep
