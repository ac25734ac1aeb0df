// idx files, the format of MNIST: an array of up to 8 dimensions, plain or gzip-compressed.
//
// Layout, big-endian: two zero bytes, the element type, the number of dimensions, the dimensions as
// 32-bit numbers, then the elements, last dimension fastest.
#pragma once

#include <filesystem>

#include "data/array_file.h"

namespace barestep {

/// Reads the header, and of a compressed file the elements too; whether it is compressed is seen
/// from its first bytes, not from its name. Memory grows with what the file really holds, never
/// with what its header claims. Elements are u8, i8, i16, i32, f32 or f64. Throws Error: kNoInput
/// when it cannot be opened, kBadData when it is not an idx file or holds more or less than its
/// header says, kMemory when it does not fit, kInputOutput when the disk fails.
ArrayFile open_idx(const std::filesystem::path& path);

}  // namespace barestep
