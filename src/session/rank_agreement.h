// The settings that ranks must agree on before they train together.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/group.h"

namespace barestep {

/// Names and values, in the same order on every rank that has the same names.
using RankSettings = std::vector<std::pair<std::string, std::string>>;

/// The size and hash of each data file. Reads the files.
RankSettings settings_of_data(const TrainConfig& config);

/// The settings that steps depend on: the options that ranks share, as resolved by resolve(), and
/// the data's size and hash. Reads the data files.
RankSettings settings_of(const TrainConfig& config);

/// The value of a setting that a rank cannot find out; it differs from none.
constexpr std::string_view kUnknownSetting = "unknown";

/// The content_hash() of this program's file; kUnknownSetting if it cannot be read, as where there
/// is no /proc, or where users may only run it.
std::string hash_of_program();

/// This program, identified by its file's hash, and the MPI that it uses.
RankSettings settings_of_build(const std::string& mpi);

/// Throws Error(kConfiguration) with the same text on every rank, listing what differs and where.
/// Every rank calls it. Blocks.
void require_agreement(Group& ranks, const RankSettings& settings);

}  // namespace barestep
