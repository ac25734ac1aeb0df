// What a file holds, in a few characters.
#pragma once

#include <filesystem>
#include <string>

namespace barestep {

/// Size and XXH3-128 (hexadecimal) of a file's bytes, "47040016 bytes, hash 0a1b...". Of a file
/// above 64 MiB 64 pieces of 1 MiB are read, evenly spread, the first and the last among them.
/// Throws Error: kNoInput, kInputOutput. Blocks.
std::string content_hash(const std::filesystem::path& path);

}  // namespace barestep
