#include "apps/bad_input.h"

#include "support/pattern.h"

namespace barestep {
namespace {

/// Reads [mpirun -np N] [NAME=value]... program [argument]...
void read_command(Arguments typed, BadInput& bad) {
  if (typed.at(0) == "mpirun") {
    bad.ranks = std::stoi(typed.at(2));
    typed.erase(typed.begin(), typed.begin() + 3);
  }
  const auto program =
      std::ranges::find_if(typed, [](const std::string& word) { return word.starts_with("mlp_"); });
  bad.environment.assign(typed.begin(), program);
  bad.program = *program;
  bad.arguments.assign(std::next(program), typed.end());
}

}  // namespace

std::vector<BadInput> bad_inputs() {
  std::ifstream file(BARESTEP_BAD_INPUT);
  std::vector<BadInput> all;
  BadInput next;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) {
      next = {.section = line.substr(3)};
    } else if (line.ends_with("> run.json")) {
      next.makes = line;
    } else if (line.starts_with("  ")) {
      std::istringstream refusal(line);
      std::getline(refusal >> next.exit_code >> std::ws, next.line);
      all.push_back(std::exchange(next, {.section = next.section}));
    } else if (!line.empty() && !line.starts_with("#")) {
      read_command(words(line), next);
    }
  }
  EXPECT_FALSE(all.empty()) << BARESTEP_BAD_INPUT;
  return all;
}

std::vector<BadInput> bad_inputs(const std::string& section) {
  std::vector<BadInput> all = bad_inputs();
  std::erase_if(all, [&](const BadInput& bad) { return bad.section != section; });
  EXPECT_FALSE(all.empty()) << section;
  return all;
}

Arguments command_of(const std::string& path_of_program, const BadInput& bad) {
  return Arguments{"/usr/bin/env"} + bad.environment + Arguments{path_of_program} + bad.arguments;
}

void expect_refused(const std::vector<BadInput>& cases, const std::filesystem::path& folder,
                    const std::function<ProcessResult(const BadInput&)>& run) {
  for (const BadInput& bad : cases) {
    SCOPED_TRACE(::testing::PrintToString(bad.arguments) + " " + bad.makes);
    if (!bad.makes.empty())
      run_process({"/bin/sh", "-c", bad.makes}, {.working_directory = folder});
    const ProcessResult result = run(bad);
    EXPECT_EQ(result.exit_code, bad.exit_code);
    const std::string line = bad.program + ": error: " + bad.line + "\n";
    if (bad.ranks == 1) EXPECT_EQ(result.err, line);
    if (bad.ranks > 1) {
      EXPECT_THAT(result.err, StartsWith(line));
      EXPECT_EQ(all_matches(result.err, bad.program + ": error:").size(), 1U) << result.err;
    }
    // A loss that diverges and a disk that is full show only after some steps.
    EXPECT_TRUE(bad.exit_code == 74 || bad.exit_code == 76 || result.out.empty()) << result.out;
  }
}

}  // namespace barestep
