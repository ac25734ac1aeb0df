#include "core/text_table.h"

#include <algorithm>

#include "core/error.h"

namespace barestep {

std::size_t columns_of(std::string_view text) {
  std::size_t columns = 0;
  for (const char each : text) {
    const auto byte = static_cast<unsigned char>(each);
    const bool is_accent = byte == 0xcc || byte == 0xcd;                  // U+0300 to U+036f
    const bool is_wide = (0xe3 <= byte && byte <= 0xed) || byte == 0xf0;  // from U+3000 on; emoji
    if ((byte & 0xc0) != 0x80 && !is_accent) columns += is_wide ? 2 : 1;
  }
  return columns;
}

TextTable::TextTable(std::vector<std::string> titles) : titles_(std::move(titles)) {
  for (std::string& title : titles_) {
    aligns_right_.push_back(title.starts_with('>'));
    if (aligns_right_.back()) title.erase(0, 1);
  }
}

void TextTable::add_row(std::vector<std::string> cells) {
  BARESTEP_REQUIRE(cells.size() <= titles_.size(), "a row has more cells than the table columns");
  cells.resize(titles_.size());
  for (std::string& cell : cells) cell = on_one_line(std::move(cell));
  rows_.push_back({std::move(cells), false});
}

void TextTable::add_line(std::string text) {
  rows_.push_back({{std::move(text)}, true});
}

std::string TextTable::text(int indent) const {
  const Row titles{titles_};
  std::vector<std::size_t> widths(titles_.size());
  const auto widen = [&](const Row& row) {
    if (row.is_line) return;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], columns_of(row.cells[i]));
    }
  };
  widen(titles);
  for (const Row& row : rows_) widen(row);

  std::string text;
  const auto print = [&](const Row& row) {
    std::string line(static_cast<std::size_t>(indent), ' ');
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      const std::string blanks(row.is_line ? 0 : widths[i] - columns_of(row.cells[i]), ' ');
      if (i > 0) line += "  ";
      line += aligns_right_[i] ? blanks + row.cells[i] : row.cells[i] + blanks;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  const auto is_empty = [](const std::string& title) { return title.empty(); };
  if (!std::ranges::all_of(titles_, is_empty)) print(titles);
  for (const Row& row : rows_) print(row);
  return text;
}

std::string TextTable::dashed_text(std::size_t first_width, std::size_t width) const {
  const auto line_of = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::size_t taken = std::max(i == 0 ? first_width : width, cells[i].size());
      line += std::string(taken - cells[i].size(), ' ') + cells[i] + "  ";
    }
    return line + "\n";
  };
  std::vector<std::string> dashes(titles_.size(), std::string(width, '-'));
  dashes.front().resize(first_width, '-');
  std::string text = line_of(dashes) + line_of(titles_) + line_of(dashes);
  for (const Row& row : rows_) text += line_of(row.cells);
  return text + line_of(dashes);
}

}  // namespace barestep
