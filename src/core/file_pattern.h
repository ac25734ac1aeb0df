// Several files by one name: data-*.npy.
#pragma once

#include <filesystem>
#include <vector>

namespace barestep {

/// The file of this very name if there is one, else those that fit it as a shell's pattern (*, ?,
/// [...]), sorted by name byte for byte. A name without such characters stands for itself, be there
/// a file or not. Throws Error(kNoInput) when a pattern fits nothing.
std::vector<std::filesystem::path> matching_files(const std::filesystem::path& pattern);

}  // namespace barestep
