// Arithmetic on sizes that a user can make arbitrarily large.
#pragma once

#include <cstdint>
#include <string_view>

namespace barestep {

/// a + b and a * b of numbers that are not negative. Throw Error(kMemory), which names `what`, when
/// the result is larger than 2^63 - 1.
std::int64_t checked_add(std::int64_t a, std::int64_t b, std::string_view what);
std::int64_t checked_multiply(std::int64_t a, std::int64_t b, std::string_view what);

}  // namespace barestep
