// What ranks must agree about before they train together.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/communicator.h"
#include "core/config.h"

namespace barestep {

/// Names and values, in an order that is the same on every rank that has the same names.
using RankSettings = std::vector<std::pair<std::string, std::string>>;

/// Of the data files, size and hash of each. Reads them.
RankSettings settings_of_data(const TrainConfig& config);

/// What steps depend on: the options that ranks share, as resolve() has left them, the data's size
/// and hash. Reads the data files.
RankSettings settings_of(const TrainConfig& config);

/// This program, by the hash of its file, and the MPI that it runs on.
RankSettings settings_of_build(const std::string& mpi);

/// Every rank's text, in rank order. Every rank calls it. Blocks.
std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine);

/// Throws Error(kConfiguration), the same on every rank, that lists what differs and where. Every
/// rank calls it. Blocks.
void require_agreement(Communicator& ranks, const RankSettings& settings);

}  // namespace barestep
