#include "core/text_table.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/error.h"

namespace barestep {

void TextTable::add_row(std::vector<std::string> cells) {
  BARESTEP_REQUIRE(cells.size() <= columns_.size(), "a row has more cells than the table columns");
  cells.resize(columns_.size());
  for (std::string& cell : cells) cell = on_one_line(std::move(cell));
  rows_.push_back({std::move(cells), false});
}

void TextTable::add_line(std::string text) {
  rows_.push_back({{std::move(text)}, true});
}

std::string TextTable::text(int indent) const {
  Row titles;
  for (const Column& column : columns_) titles.cells.push_back(column.title);
  std::vector<std::size_t> widths(columns_.size());
  const auto widen = [&](const Row& row) {
    if (row.is_line) return;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], row.cells[i].size());
    }
  };
  widen(titles);
  for (const Row& row : rows_) widen(row);

  std::string text;
  const auto print = [&](const Row& row) {
    std::string line(static_cast<std::size_t>(indent), ' ');
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      const std::string blanks(row.is_line ? 0 : widths[i] - row.cells[i].size(), ' ');
      if (i > 0) line += "  ";
      line += columns_[i].align == Align::kRight ? blanks + row.cells[i] : row.cells[i] + blanks;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  const bool has_titles = std::any_of(columns_.begin(), columns_.end(),
                                      [](const Column& column) { return !column.title.empty(); });
  if (has_titles) print(titles);
  for (const Row& row : rows_) print(row);
  return text;
}

std::string TextTable::dashed_text() const {
  const auto line_of = [&](const auto& cell_of) {
    std::string line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string cell = cell_of(i);
      const std::size_t width = std::max(columns_[i].width, cell.size());
      line += std::string(width - cell.size(), ' ') + cell + "  ";
    }
    return line + "\n";
  };
  const std::string dashes =
      line_of([&](std::size_t i) { return std::string(columns_[i].width, '-'); });
  std::string text = dashes + line_of([&](std::size_t i) { return columns_[i].title; }) + dashes;
  for (const Row& row : rows_) text += line_of([&](std::size_t i) { return row.cells[i]; });
  return text + dashes;
}

}  // namespace barestep
