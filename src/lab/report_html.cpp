#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lab/prediction_report.h"
#include "lab/report.h"
#include "lab/svg.h"

namespace barestep {
namespace {

constexpr const char* kPageStyle = R"(:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h1,h2{line-height:1.2}h2{margin-top:3rem;border-top:1px solid #ccc;padding-top:1rem}
table{border-collapse:collapse;margin:1rem 0;font-size:13px;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding-bottom:.3rem}
th,td{padding:.25rem .7rem;border-bottom:1px solid #ddd;text-align:right}
th:first-child,td:first-child{text-align:left}
pre{overflow-x:auto;background:#f5f5f5;padding:.7rem;font-size:12px}
.question{font-style:italic}.invalid{border-left:4px solid #d55e00;padding:.3rem .8rem;background:#fdf0e8}
figure{margin:1rem 0}.scroll{overflow-x:auto}
@media screen and (prefers-color-scheme:dark){body{color:#ddd;background:#161616}
h2{border-color:#444}th,td{border-color:#333}pre{background:#222}.invalid{background:#3a2418}}
@media print{body{max-width:none;margin:0;font-size:11pt}h2{break-after:avoid}
figure,table{break-inside:avoid}pre{white-space:pre-wrap}}
)";

std::string html_row(const std::vector<std::string>& cells, const char* tag) {
  std::string row = "<tr>";
  for (const std::string& cell : cells) row += fmt::format("<{0}>{1}</{0}>", tag, xml_text(cell));
  return row + "</tr>\n";
}

std::string html_table(const FindingTable& table) {
  std::string text = fmt::format(
      "<div class=\"scroll\"><table><caption>{}</caption>\n<thead>{}"
      "</thead><tbody>\n",
      xml_text(table.title), html_row(table.columns, "th"));
  for (const auto& row : table.rows) text += html_row(row, "td");
  return text + "</tbody></table></div>\n";
}

/// Sentences, tables and plots.
std::string html_details(const Findings& findings) {
  std::string text = "<ul>\n";
  for (const std::string& sentence : findings.sentences) {
    text += fmt::format("<li>{}</li>\n", xml_text(sentence));
  }
  text += "</ul>\n";
  for (const FindingTable& table : findings.tables) text += html_table(table);
  for (const Plot& plot : findings.plots) {
    text += fmt::format("<figure>{}</figure>\n", svg_of(plot));
  }
  return text;
}

std::string html_section(const Report& report, const ReportSection& section) {
  const Experiment& experiment = *section.experiment;
  std::string text =
      fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"question\">{}</p>\n",
                  experiment.name, xml_text(experiment.title), xml_text(experiment.question));
  if (!section.verdict.empty()) {
    text += fmt::format("<p class=\"invalid\">{}</p>\n", xml_text(section.verdict));
  }
  text += html_details(section.findings);
  text += html_table(step_table(section.results));
  text += fmt::format("<p>{}</p>\n", xml_text(quality_sentence(section.results)));
  text += fmt::format("<details><summary>Reproduce: <code>{}</code></summary><pre>",
                      xml_text(command_of(report, section)));
  for (const Measurement& each : section.results.cases) {
    text += xml_text(command_line_of(each.workload())) + "\n";
  }
  text += "</pre></details>\n<details><summary>Configurations</summary><pre>";
  text += xml_text(configurations_of(section));
  return text + "</pre></details>\n</section>\n";
}

}  // namespace

std::string html_of(const Report& report) {
  std::string text = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n<title>Report of mlp_lab</title>\n"
      "<style>{}{}</style>\n</head>\n<body>\n<h1>Report of mlp_lab</h1>\n<ul>\n",
      kPageStyle, svg_style());
  for (const auto& [name, value] : report.environment) {
    text += fmt::format("<li>{}: {}</li>\n", xml_text(name), xml_text(value));
  }
  text += "</ul>\n<nav><ul>\n";
  for (const ReportSection& section : report.sections) {
    text += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", section.experiment->name,
                        xml_text(section.experiment->title));
  }
  const Findings prediction = prediction_findings(report.results());
  if (!prediction.sentences.empty()) {
    text += "<li><a href=\"#prediction\">Prediction against measurement</a></li>\n";
  }
  text += "</ul></nav>\n";
  for (const ReportSection& section : report.sections) text += html_section(report, section);
  if (!prediction.sentences.empty()) {
    text += fmt::format(
        "<section id=\"prediction\">\n<h2>Prediction against measurement</h2>\n{}</section>\n",
        html_details(prediction));
  }
  return text + fmt::format("<h2>How figures were made</h2>\n<p>{}</p>\n</body>\n</html>\n",
                            xml_text(fmt::format("{}", fmt::join(method_sentences(), " "))));
}

}  // namespace barestep
