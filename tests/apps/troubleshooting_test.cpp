// docs/errors.md lists the error lines of the tables of bad input, and those of the table
// of options that exclude each other. To regenerate it, run BARESTEP_WRITE_DOCS=1
// build/tests/programs_test --gtest_filter='Troubleshooting.*'
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>
#include <string>

#include "apps/bad_input_cases.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

constexpr std::string_view kMark = "<!-- made by tests/apps/troubleshooting_test.cpp -->\n";

struct Section {
  const char* title;
  std::vector<BadInput> cases;
};

/// Adds one line for errors that differ only in the value, unless an earlier section has it. Values
/// that a page cannot show are left out.
std::string lines_of(const std::vector<BadInput>& cases, std::set<std::string>& shown) {
  constexpr std::size_t kLongest = 400;
  static const std::regex kValue("'[^']*'");
  std::set<std::string> seen;
  std::string text;
  for (const BadInput& bad : cases) {
    const bool shows = bad.line.size() <= kLongest && bad.line.find('`') == std::string::npos &&
                       std::ranges::all_of(bad.line, [](char c) { return c >= ' ' && c <= '~'; });
    if (!shows || !seen.insert(std::regex_replace(bad.line, kValue, "''")).second) continue;
    if (shown.insert(bad.line).second)
      text += fmt::format("- `{}` ({})\n", bad.line, bad.exit_code);
  }
  return text;
}

std::string all_lines() {
  std::vector<BadInput> together;
  for (const TrainingProgram& program : kTrainingPrograms) {
    const std::vector<BadInput> more = bad_combinations(program.usual);
    together.insert(together.end(), more.begin(), more.end());
  }
  const Section sections[] = {{"Options", bad_command_lines()},
                              {"Options that exclude each other", together},
                              {"Updates", bad_updates()},
                              {"Profiles and traces", bad_profiling()},
                              {"Evaluation", bad_evaluations()},
                              {"Configuration files", bad_config_files()},
                              {"Data, weights and output files", bad_files()},
                              {"NumPy and safetensors data", bad_arrays()},
                              {"Devices (mlp_dp)", bad_devices()},
                              {"Ranks (mlp_ddp)", bad_ranks()},
                              {"The lab (mlp_lab)", bad_lab()}};
  std::set<std::string> shown;
  std::string text;
  for (const auto& [title, cases] : sections) {
    text += fmt::format("\n## {}\n\n{}", title, lines_of(cases, shown));
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
