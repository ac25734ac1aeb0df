// npy files, NumPy's format: one array behind a short text header.
//
// Layout: "\x93NUMPY", version, header length (little-endian), the header as a Python dictionary of
// literals ('descr', 'fortran_order', 'shape'), then the elements. The format is
// numpy/lib/format.py's; the header is read by a grammar of just these literals and never
// evaluated.
#pragma once

#include <filesystem>
#include <string_view>

#include "data/array_file.h"

namespace barestep {

/// What a header says; begin_bytes is not set. Elements are u1, i1, b1 (as u8), i2, i4, i8, f4 or
/// f8, of either byte order. Throws Error(kBadData) naming `path`.
ArrayHeader parse_npy_header(std::string_view text, const std::filesystem::path& path);

/// Reads the header; the elements stay in the file. Refuses what NumPy refuses, in its order:
/// magic, version (1 to 3), a header longer than 10,000 bytes or than the file, keys, shape, order,
/// type. Beyond that it refuses column-major arrays, types that are no plain numbers, more than 8
/// dimensions, and files longer than the header says. Throws Error: kNoInput when the file cannot
/// be opened, kBadData, kInputOutput when reading fails.
ArrayFile open_npy(const std::filesystem::path& path);

}  // namespace barestep
