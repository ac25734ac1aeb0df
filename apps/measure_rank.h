// What mlp_lab starts, under mpirun, to measure the rates of its machine.
#pragma once

#include <CLI/CLI.hpp>

#include <filesystem>
#include <string>

namespace barestep {

struct RankRatesOptions {
  std::filesystem::path output;
  std::string device = "cpu";
  int threads = 0;
  bool quick = false;
  bool alone = false;  // without MPI
};

/// Adds a subcommand that --help does not show. `options` must outlive the app.
void add_measure_rank(CLI::App& app, RankRatesOptions& options);

/// Throws Error where the card of this machine cannot be written to `output`, or would replace one
/// of the programs in the folder that measure it. Nothing for an empty path.
void require_card_output(const std::filesystem::path& output,
                         const std::filesystem::path& programs);

}  // namespace barestep
