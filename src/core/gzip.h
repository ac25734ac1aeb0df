// Bytes in gzip's format (RFC 1952).
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace barestep {

/// A whole gzip file, at the level that gzip takes by default. Throws std::bad_alloc.
std::vector<std::byte> gzip_of(std::string_view text);

}  // namespace barestep
