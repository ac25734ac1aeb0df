// docs/errors.md lists the error lines of the tables of bad input, and those of the table
// of options that exclude each other. To regenerate it, run BARESTEP_WRITE_DOCS=1
// build/tests/programs_test --gtest_filter='Troubleshooting.*'

#include <regex>

#include "apps/bad_input.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

constexpr std::string_view kMark = "<!-- made by tests/apps/troubleshooting_test.cpp -->\n";

/// Whether a page can show the line.
bool shows(const std::string& line) {
  constexpr std::size_t kLongest = 400;
  return line.size() <= kLongest && line.find('`') == std::string::npos &&
         std::ranges::all_of(line, [](char c) { return c >= ' ' && c <= '~'; });
}

/// A section of each kind of bad input, with one line for errors that differ only in the value.
std::string all_lines() {
  std::vector<BadInput> all = bad_inputs();
  std::vector<BadInput> together;
  for (const TrainingProgram& program : kTrainingPrograms) {
    std::ranges::move(bad_combinations(program.usual), std::back_inserter(together));
  }
  const auto updates = std::ranges::find(all, "Updates", &BadInput::section);
  all.insert(updates, together.begin(), together.end());
  static const std::regex kValue("'[^']*'");
  std::set<std::string> shown;
  std::set<std::string> of_section;  // without their values
  std::string text;
  std::string section;
  for (const BadInput& bad : all) {
    if (bad.section != section) {
      section = bad.section;
      of_section.clear();
      text += fmt::format("\n## {}\n\n", section);
    }
    if (!shows(bad.line) || !of_section.insert(std::regex_replace(bad.line, kValue, "''")).second)
      continue;
    if (shown.insert(bad.line).second)
      text += fmt::format("- `{}` ({})\n", bad.line, bad.exit_code);
  }
  return text;
}

TEST(Troubleshooting, ListsEveryErrorLineOfTheTablesOfBadInput) {
  const std::filesystem::path page = std::filesystem::path(BARESTEP_DOCS) / "errors.md";
  const std::string text = read_file(page);
  const std::size_t mark = text.find(kMark);
  ASSERT_NE(mark, std::string::npos);
  const std::string expected = text.substr(0, mark) + std::string(kMark) + all_lines();
  if (std::getenv("BARESTEP_WRITE_DOCS") != nullptr) std::ofstream(page) << expected;
  EXPECT_EQ(read_file(page), expected)
      << "run BARESTEP_WRITE_DOCS=1 build/tests/programs_test --gtest_filter='Troubleshooting.*'";
}

}  // namespace
}  // namespace barestep
