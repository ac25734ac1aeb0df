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

}  // namespace barestep
