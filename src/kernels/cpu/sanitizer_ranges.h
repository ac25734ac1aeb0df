// Tells ThreadSanitizer what a library touches.
//
// The sanitizer sees accesses of code that was compiled with it, so a race inside a library goes
// unnoticed unless the caller announces the ranges. Without the sanitizer these do nothing.
#pragma once

#include <cstdint>

namespace barestep {

/// `rows` rows of `cols` numbers, `stride` numbers apart, are read here, or written.
void announce_read(const float* first, std::int64_t rows, std::int64_t cols, std::int64_t stride);
void announce_write(const float* first, std::int64_t rows, std::int64_t cols, std::int64_t stride);

}  // namespace barestep
