// Bad input to the programs, and the expected error lines.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/config.h"
#include "support/arguments.h"

namespace barestep {

struct BadInput {
  int case_number;  // number in the list of bad inputs to mlp_single; a case may need several rows;
                    // 0 for other programs
  Arguments arguments;
  int exit_code;
  std::string line;     // the whole of stderr, after the program and ": error: "
  std::string file{};   // content of run.json in the working directory; no file if empty
  bool trains = false;  // refused only after some steps
  std::vector<std::string> environment{};  // additional variables, as NAME=value
  int ranks = 1;  // of mlp_ddp; several are started by mpirun, which prints more after the line
};

// The ends of the lines about widths, seeds and batch sizes.
inline const std::string kNeedsWidths =
    "; give 2 to 10001 widths from 1 to 16777216, such as 784,512,10";
inline const std::string kNeedsSeed =
    "; give any 64-bit integer, from -9223372036854775808 to 18446744073709551615";
inline const std::string kNeedsBatch = "; give a whole number from 1 to 2147483647";

std::vector<BadInput> bad_command_lines();
std::vector<BadInput> bad_profiling();

/// A command line for each refusal in the table of options that exclude each other (conflicts() of
/// options.h), by the first program that has these options.
std::vector<BadInput> bad_combinations(SchemeKind usual);

std::vector<BadInput> bad_updates();
std::vector<BadInput> bad_config_files();

/// Cases about files; they name the files written by write_bad_files().
std::vector<BadInput> bad_files();

/// The same for npy and safetensors files of samples, with write_bad_arrays().
std::vector<BadInput> bad_arrays();
void write_bad_arrays(const std::filesystem::path& folder);

std::vector<BadInput> bad_evaluations();

/// Fills a folder with files that each have one fault, and with some correct files.
void write_bad_files(const std::filesystem::path& folder);

/// Cases of mlp_dp.
std::vector<BadInput> bad_devices();

/// Cases of mlp_ddp.
std::vector<BadInput> bad_ranks();

/// Cases of mlp_lab. Some need a FIFO `fifo.json`, a link `link` to mlp_lab, or `twin.json`, a hard
/// link to run.json.
std::vector<BadInput> bad_lab();

}  // namespace barestep
