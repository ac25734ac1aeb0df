// Plain-text tables with aligned columns.
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
    std::size_t width = 0;  // for dashed_text()
  };

  /// The titles are printed above the rows unless all of them are empty.
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// One cell per column; omitted cells at the end are empty.
  void add_row(std::vector<std::string> cells);

  /// A line outside the columns.
  void add_line(std::string text);

  /// Every row on its own line, indented by `indent` blanks, with two blanks between columns and
  /// none at the end of a line.
  [[nodiscard]] std::string text(int indent = 0) const;

  /// The table in the style of PyTorch's profiler: right-aligned cells in columns of fixed width,
  /// two blanks after each, between lines of dashes.
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
