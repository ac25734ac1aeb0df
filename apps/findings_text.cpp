#include "findings_text.h"

#include <fmt/format.h>

#include "core/text_table.h"

namespace barestep {

std::string text_of(const Findings& findings) {
  std::string text;
  for (const std::string& sentence : findings.sentences) text += fmt::format("  {}\n", sentence);
  for (const FindingTable& table : findings.tables) {
    std::vector<TextTable::Column> columns;
    for (const std::string& title : table.columns) {
      columns.push_back({title, columns.empty() ? Align::kLeft : Align::kRight});
    }
    TextTable shown(columns);
    for (const auto& row : table.rows) shown.add_row(row);
    text += fmt::format("\n  {}\n{}", table.title, shown.text(4));
  }
  return text;
}

std::string text_of(const std::vector<PublishedNumber>& numbers) {
  TextTable table(
      {{"what"}, {"published", Align::kRight}, {"ours", Align::kRight}, {""}, {"source"}});
  for (const PublishedNumber& each : numbers) {
    const char* verdict = !each.reproduced ? "" : *each.reproduced ? "reproduced" : "DIFFERS";
    table.add_row({each.what, each.published, each.ours, verdict, each.source});
  }
  return table.text(2);
}

}  // namespace barestep
