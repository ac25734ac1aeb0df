// Tables of plain text with aligned columns.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace barestep {

enum class Align { kLeft, kRight };

class TextTable {
 public:
  struct Column {
    std::string title;
    Align align = Align::kLeft;
    std::size_t width = 0;  // of dashed_text()
  };

  /// The titles are printed above the rows, unless all are empty.
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// One cell per column; cells that are left out at the end are empty.
  void add_row(std::vector<std::string> cells);

  /// A line that is not part of any column.
  void add_line(std::string text);

  /// Every row on its own line after `indent` blanks, columns two blanks apart, no blanks at
  /// the end of a line.
  [[nodiscard]] std::string text(int indent = 0) const;

  /// As PyTorch's profiler prints tables: cells on the right of columns of fixed widths, two blanks
  /// after each, between lines of dashes.
  [[nodiscard]] std::string dashed_text() const;

 private:
  struct Row {
    std::vector<std::string> cells;
    bool is_line = false;
  };

  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

}  // namespace barestep
