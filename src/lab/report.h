// A study as files that people and programs read.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/experiment.h"
#include "lab/study.h"

namespace barestep {

struct ReportSection {
  const Experiment* experiment;
  Results results;
  Findings findings;
  std::string verdict;  // empty, or why the figures must not be trusted
};

struct Report {
  std::vector<std::pair<std::string, std::string>> environment;
  std::string options;  // of mlp_lab run, that reproduce it: " --quick"
  double margin = kDefaultMargin;
  std::vector<ReportSection> sections;

  /// Those of valid sections: a prediction is held against nothing that was disturbed.
  [[nodiscard]] std::vector<const Results*> results() const;
};

/// Concludes every experiment that the study has measured. Differences within `margin`, a ratio
/// above 1, are called small. Throws Error(kNoInput) if there is none.
Report report_of(const Study& study, double margin = kDefaultMargin);

/// How statistics were made, in sentences.
std::vector<std::string> method_sentences(double margin);

/// The answers of a section: sentences about times, in place of which an invalid section says
/// "No conclusion: " and why; then facts.
std::vector<std::string> answers_of(const ReportSection& section);

/// Of an invalid section: "INVALID. No conclusion: ...", which pages set apart, and the answers
/// without it; of a valid one these are all.
std::string invalid_line(const ReportSection& section);
std::vector<std::string> shown_answers(const ReportSection& section);

/// "mlp_lab run NAME": what reproduces a section.
std::string command_of(const Report& report, const ReportSection& section);

/// The table that every experiment has: step times of all cases, what steps they are of, and what
/// was predicted, where it was.
FindingTable step_table(const Results& results);

/// How the starts went: outliers, drift, starts that were made again, time lost to others.
std::string quality_sentence(const Results& results);

/// The configuration of each case by its name, a line each: "batch-32: {...}".
std::string configurations_of(const ReportSection& section);

std::string markdown_of(const Report& report);
std::string markdown_table(const FindingTable& table);

/// One page without a script: contents, a summary that fits a sheet of paper, then the sections.
std::string html_of(const Report& report);

/// With &, <, > and quotes as HTML writes them, and no line break between a number and its unit.
std::string html_text(std::string_view text);

std::string csv_of(const Report& report);

/// As docs/results.schema.json says.
std::string json_of(const Report& report);

/// Name of the file of a plot of a section, or of "prediction", which report.md shows:
/// "plots/amdahl-1.svg".
std::string plot_file(const std::string& section, std::size_t number);

/// Writes report.html, report.md, results.csv, results.json and the plots into the folder. Throws
/// Error: kCannotCreate, kInputOutput.
void write_report(const std::filesystem::path& folder, const Report& report);

}  // namespace barestep
