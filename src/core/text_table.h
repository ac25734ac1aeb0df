// Plain-text tables with aligned columns.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace barestep {

/// How many columns a terminal takes for UTF-8: none for an accent that stands by itself, two for a
/// letter of Chinese, Japanese or Korean.
std::size_t columns_of(std::string_view text);

class TextTable {
 public:
  /// A title for each column, after ">" if its cells are aligned right: {"op", ">flops"}. Printed
  /// above the rows unless all are empty.
  explicit TextTable(std::vector<std::string> titles);

  /// One cell per column; omitted cells at the end are empty.
  void add_row(std::vector<std::string> cells);

  /// A line outside the columns.
  void add_line(std::string text);

  /// Every row on its own line, indented by `indent` blanks, with two blanks between columns and
  /// none at the end of a line.
  [[nodiscard]] std::string text(int indent = 0) const;

  /// The table in the style of PyTorch's profiler: right-aligned cells in columns of fixed width,
  /// two blanks after each, between lines of dashes.
  [[nodiscard]] std::string dashed_text(std::size_t first_width, std::size_t width) const;

 private:
  struct Row {
    std::vector<std::string> cells;
    bool is_line = false;
  };

  std::vector<std::string> titles_;
  std::vector<bool> aligns_right_;
  std::vector<Row> rows_;
};

}  // namespace barestep
