// The data sets that experiments read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace barestep {

/// Writes x.npy and y.npy, `rows` x `dim` numbers between -1 and 1 each, into the folder, which is
/// made; unless they are there already. Throws Error: kCannotCreate, kInputOutput.
void make_data_set(const std::filesystem::path& folder, std::int64_t rows, std::int64_t dim);

/// The --data of such a folder: "npy:FOLDER/x.npy,FOLDER/y.npy".
std::string data_option(const std::filesystem::path& folder);

}  // namespace barestep
