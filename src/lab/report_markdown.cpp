#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lab/prediction_report.h"
#include "lab/report.h"

namespace barestep {
namespace {

std::string markdown_cell(const std::string& text) {
  std::string safe;
  for (const char each : text) {
    if (each == '|') safe += '\\';
    safe += each;
  }
  return safe;
}

std::string markdown_row(const std::vector<std::string>& cells) {
  std::string row = "|";
  for (const std::string& cell : cells) row += fmt::format(" {} |", markdown_cell(cell));
  return row + "\n";
}

std::string markdown_table(const FindingTable& table) {
  std::string text = fmt::format("**{}**\n\n{}|", table.title, markdown_row(table.columns));
  for (std::size_t i = 0; i < table.columns.size(); ++i) text += i == 0 ? " --- |" : " ---: |";
  text += "\n";
  for (const auto& row : table.rows) text += markdown_row(row);
  return text + "\n";
}

/// Sentences, tables and plots.
std::string markdown_details(const Findings& findings, const std::string& name) {
  std::string text;
  for (const std::string& sentence : findings.sentences) text += fmt::format("- {}\n", sentence);
  text += "\n";
  for (const FindingTable& table : findings.tables) text += markdown_table(table);
  for (std::size_t i = 0; i < findings.plots.size(); ++i) {
    text += fmt::format("![{}]({})\n\n", findings.plots[i].title, plot_file(name, i));
  }
  return text;
}

std::string markdown_section(const Report& report, const ReportSection& section) {
  std::string text =
      fmt::format("## {}\n\n*{}*\n\n", section.experiment->title, section.experiment->question);
  if (!section.verdict.empty()) text += fmt::format("> **{}**\n\n", section.verdict);
  text += markdown_details(section.findings, section.experiment->name);
  text += markdown_table(step_table(section.results));
  text += quality_sentence(section.results) + "\n\n";
  text += fmt::format("Reproduce: `{}`; its runs:\n\n```\n", command_of(report, section));
  for (const Measurement& each : section.results.cases) {
    text += command_line_of(each.workload()) + "\n";
  }
  text += "```\n\nTheir configurations:\n\n```\n";
  text += configurations_of(section);
  return text + "```\n\n";
}

}  // namespace

std::string markdown_of(const Report& report) {
  std::string text = "# Report of mlp_lab\n\n";
  for (const auto& [name, value] : report.environment) {
    text += fmt::format("- {}: {}\n", name, value);
  }
  text += "\n";
  for (const ReportSection& section : report.sections) text += markdown_section(report, section);
  const Findings prediction = prediction_findings(report.results());
  if (!prediction.sentences.empty()) {
    text += "## Prediction against measurement\n\n" + markdown_details(prediction, "prediction");
  }
  return text + fmt::format("## How figures were made\n\n{}\n", fmt::join(method_sentences(), " "));
}

}  // namespace barestep
