// What shells and man make of the texts about a program.
#include "program_texts.h"

#include "command_line.h"
#include "options/options.h"
#include "support/process.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

using testing::IsSupersetOf;

bool has(const std::string& tool) {
  return run_process({"/bin/sh", "-c", "command -v " + tool}).exit_code == 0;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

ProgramText made_up() {
  const Argument name = {.name = "name", .values = {"amdahl", "all"}, .takes_several = true};
  const Argument loss = {.name = "--loss", .type = "mse|l1|bce", .help = "it's [a] loss: one"};
  const Argument data = {.name = "--data", .type = "randn|idx:X,Y"};
  const Argument steps = {.name = "--steps", .type = "N"};
  const Argument output = {.name = "--output", .type = "DIR"};
  const Argument quick = {.name = "--quick", .help = ".quick"};
  return {.program = "lab",
          .version = "1.2",
          .examples = "Examples:\n  lab run amdahl \\\n      --quick",
          .self = {.description = "Runs things."},
          .commands = {{"run", "Run them.", {name, loss, data, steps, output, quick}},
                       {"list", "List them.", {}}}};
}

class Completion : public TempDirTest {
 protected:
  /// What bash offers for the last of these words.
  std::vector<std::string> in_bash(const std::string& script, const std::string& words) {
    const std::string program = words.substr(0, words.find(' '));
    const ProcessResult result = run_process(
        {"/usr/bin/env", "bash", "-c",
         "compopt() { echo \"compopt $*\"; }; . " + file("completion", script).string() +
             "; COMP_WORDS=(" + words + "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _" + program +
             "; if [ ${#COMPREPLY[@]} != 0 ]; then printf '%s\\n' \"${COMPREPLY[@]}\"; fi"});
    EXPECT_EQ(result.err, "");
    return lines_of(result.out);
  }
  std::vector<std::string> in_bash(const std::string& words) {
    return in_bash(bash_completion(made_up()), words);
  }

  /// The arguments with which zsh's functions are called for the last of these words.
  std::vector<std::string> in_zsh(const std::string& script, const std::string& words) {
    const ProcessResult result = run_process(
        {"/usr/bin/env", "zsh", "-fc",
         "_arguments() { print -rl -- $@ }; _describe() { print -rl -- ${(P)2} }; words=(" + words +
             "); CURRENT=${#words}; . " + file("_completion", script).string()});
    EXPECT_EQ(result.err, "");
    return lines_of(result.out);
  }
};

TEST_F(Completion, OffersCommandsAndThenTheirArguments) {
  EXPECT_THAT(in_bash("lab ''"), ElementsAre("run", "list"));
  EXPECT_THAT(in_bash("lab l"), ElementsAre("list"));
  EXPECT_THAT(in_bash("lab --ver"), ElementsAre("--version"));
  EXPECT_THAT(in_bash("lab run ''"), ElementsAre("amdahl", "all"));
  EXPECT_THAT(in_bash("lab run amdahl am"), ElementsAre("amdahl"));
  EXPECT_THAT(in_bash("lab run --"),
              ElementsAre("--loss", "--data", "--steps", "--output", "--quick", "--help"));
  EXPECT_THAT(in_bash("lab run --quick am"), ElementsAre("amdahl"));
  EXPECT_THAT(in_bash("lab list --"), ElementsAre("--help"));
}

TEST_F(Completion, OffersTheValuesOfAnOption) {
  EXPECT_THAT(in_bash("lab run --loss ''"), ElementsAre("mse", "l1", "bce"));
  EXPECT_THAT(in_bash("lab run --loss = b"), ElementsAre("bce"));
  EXPECT_THAT(in_bash("lab run --loss ="), ElementsAre("mse", "l1", "bce"));
  EXPECT_THAT(in_bash("lab run --data i"), ElementsAre("compopt -o nospace", "idx:"));
}

TEST_F(Completion, LeavesFilesToTheShellAndOffersNothingForNumbers) {
  EXPECT_THAT(in_bash("lab run --output ''"), IsEmpty()) << "so bash offers names of files";
  EXPECT_THAT(in_bash("lab run --steps ''"), ElementsAre("compopt +o default"));
}

TEST_F(Completion, KnowsEveryOptionOfTheTrainersAndEveryChoice) {
  for (const auto& [name, usual, last] : kTrainingPrograms) {
    const std::string program(name);
    const std::string script = parse_command_line(usual, {"--completion", "bash"}).answer;
    std::vector<std::string> names;
    for (const std::string_view option : names_of_options(usual)) {
      names.push_back("--" + std::string(option));
    }
    EXPECT_THAT(in_bash(script, program + " --"), IsSupersetOf(names));
    EXPECT_THAT(in_bash(script, program + " --dim 8 --optimizer ''"),
                ElementsAre("adam", "adamw", "sgd", "rmsprop", "adagrad", "lion"));
  }
}

TEST_F(Completion, OffersTheSameInZsh) {
  if (!has("zsh")) GTEST_SKIP() << "no zsh";
  const std::string script = zsh_completion(made_up());
  EXPECT_THAT(in_zsh(script, "lab ''"),
              ElementsAre("run:Run them.", "list:List them.", "--help[print this and exit]",
                          "--version[print the version and exit]"));
  EXPECT_THAT(
      in_zsh(script, "lab run ''"),
      ElementsAre("*:name:(amdahl all)", "--loss[it's \\[a\\] loss\\: one]:mse|l1|bce:(mse l1 bce)",
                  "--data[]:randn|idx\\:X,Y:(randn idx\\:)", "--steps[]:N: ",
                  "--output[]:DIR:_files", "--quick[.quick]", "--help[print this and exit]"));
  const std::string own = parse_command_line(SchemeKind::kDdp, {"--completion", "zsh"}).answer;
  EXPECT_THAT(in_zsh(own, "mlp_ddp ''").size(), names_of_options(SchemeKind::kDdp).size() + 5)
      << "--config, --completion, --man, --help and --version";
}

TEST_F(Completion, IsRefusedForOtherShells) {
  EXPECT_THROW(parse_command_line(SchemeKind::kSingle, {"--completion", "fish"}), Error);
  EXPECT_THROW(parse_command_line(SchemeKind::kSingle, {"--completion"}), Error);
}

TEST(ManPage, HasEveryOptionAndNoMacroFromATextOfOurs) {
  const std::string page = man_page(made_up());
  EXPECT_THAT(page, HasSubstr(".TH LAB 1 \"\" \"barestep 1.2\""));
  EXPECT_THAT(page, HasSubstr("\nlab \\- Runs things\n"));
  EXPECT_THAT(page, HasSubstr("\n.SS lab run\nRun them.\n"));
  EXPECT_THAT(page, HasSubstr("\n.B \\-\\-loss mse|l1|bce\nit's [a] loss: one\n"));
  EXPECT_THAT(page, HasSubstr("\n\\&.quick\n"));
  EXPECT_THAT(page, HasSubstr("\n.nf\n  lab run amdahl \\e\n      \\-\\-quick\n.fi\n"));
  const std::string own = parse_command_line(SchemeKind::kSingle, {"--man"}).answer;
  for (const std::string_view name : names_of_options(SchemeKind::kSingle)) {
    std::string escaped = "\n.B \\-\\-" + std::string(name);
    for (std::size_t at = 9; (at = escaped.find('-', at)) != std::string::npos; at += 2) {
      escaped.insert(at, "\\");
    }
    EXPECT_THAT(own, HasSubstr(escaped));
  }
}

TEST_F(Completion, ManFindsNothingWrongWithThePages) {
  if (!has("man")) GTEST_SKIP() << "no man";
  for (const TrainingProgram& program : kTrainingPrograms) {
    const std::filesystem::path page =
        file("page.1", parse_command_line(program.usual, {"--man"}).answer);
    const ProcessResult shown =
        run_process({"/usr/bin/env", "man", "--warnings", "-l", page.string()});
    EXPECT_EQ(shown.exit_code, 0);
    EXPECT_EQ(shown.err, "");
    EXPECT_THAT(shown.out, HasSubstr("learning rate"));
  }
}

}  // namespace
}  // namespace barestep
