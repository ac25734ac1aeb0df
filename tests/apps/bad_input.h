// Bad input to the programs, and the error lines that it ends in.
#pragma once

#include "core/config.h"
#include "support/arguments.h"
#include "support/process.h"
#include "support/testing.h"

namespace barestep {

/// A command line that a program refuses.
struct BadInput {
  std::string section{};    // of docs/errors.md
  std::string makes{};      // a shell command that writes run.json first; may be empty
  int ranks = 1;            // of mlp_ddp; several are started by mpirun, which adds to stderr
  Arguments environment{};  // additional variables, as NAME=value
  std::string program{};
  Arguments arguments{};
  int exit_code = 0;
  std::string line{};  // the whole of stderr, after the program and ": error: "
};

/// The cases of bad_input.txt, which says how it is read. Some need files: those that
/// write_bad_files() writes, and the lab's, which its test makes.
std::vector<BadInput> bad_inputs();
std::vector<BadInput> bad_inputs(const std::string& section);

/// A command line for each refusal in the table of options that exclude each other (conflicts() of
/// options.h), by the first program that has these options.
std::vector<BadInput> bad_combinations(SchemeKind usual);

/// Fills a folder with files that each have one fault, and with some correct files.
void write_bad_files(const std::filesystem::path& folder);
void write_bad_arrays(const std::filesystem::path& folder);

/// The command line of a case, with its environment.
Arguments command_of(const std::string& path_of_program, const BadInput& bad);

/// Runs each case by `run`, whose working directory is `folder`, and expects the case's exit code
/// and nothing but its line.
void expect_refused(const std::vector<BadInput>& cases, const std::filesystem::path& folder,
                    const std::function<ProcessResult(const BadInput&)>& run);

}  // namespace barestep
