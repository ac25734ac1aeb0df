// Bad input to mlp_single, and the expected error lines.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace barestep {

struct BadInput {
  int case_number;  // number in the list of bad inputs in docs; a case may need several rows
  std::vector<std::string> arguments;
  int exit_code;
  std::string line;     // the whole of stderr, after "mlp_single: error: "
  std::string file{};   // content of run.json in the working directory; no file if empty
  bool trains = false;  // refused only after some steps
};

// The ends of the lines about widths, seeds and batch sizes.
inline const std::string kNeedsWidths =
    "; give 2 to 10001 widths from 1 to 16777216, as 784,512,10";
inline const std::string kNeedsSeed =
    "; give any 64-bit integer, from -9223372036854775808 to 18446744073709551615";
inline const std::string kNeedsBatch = "; give a whole number from 1 to 2147483647";

std::vector<BadInput> bad_command_lines();
std::vector<BadInput> bad_profiling();
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

}  // namespace barestep
