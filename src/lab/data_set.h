// The data sets that experiments read.
#pragma once

#include <cstdint>
#include <filesystem>

#include "core/config.h"

namespace barestep {

/// Writes x.npy and y.npy, `rows` x `dim` numbers between -1 and 1 each, into the folder, which is
/// made; unless they are there already. Throws Error: kCannotCreate, kInputOutput.
void make_data_set(const std::filesystem::path& folder, std::int64_t rows, std::int64_t dim);

/// Makes a run read such a folder: its --data.
void read_data_set(DataConfig& data, const std::filesystem::path& folder);

}  // namespace barestep
