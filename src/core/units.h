// Numbers: printing and parsing them for people, and overflow-checked arithmetic on sizes that a
// user sets.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace barestep {

/// "512 B", "1.50 GiB": binary units, two decimals.
std::string human_bytes(std::int64_t bytes);

/// "402,702,336".
std::string grouped(std::int64_t number);

/// "step" for 1, "steps" or "batches" for other numbers; `noun` is the singular.
std::string noun_for(std::int64_t number, std::string_view noun);

/// "1 step", "20 steps".
std::string counted(std::int64_t number, std::string_view noun);

/// "nan", "inf" or "-inf", for a number that is not finite; the sign of a NaN has no meaning.
std::string not_finite_text(double number);

/// Three digits: "0.0123", "1.23", "12,300".
std::string number_text(double number);

/// "36.2 %", for a share from 0 to 1.
std::string percent_text(double share);

/// "5 %", for a chosen share, which needs no measured digits.
std::string chosen_percent(double share);

/// "12.3 ms", "456 us", "1.20 s": three digits.
std::string time_text(double seconds);

/// "0.1234": at least four decimals and at least four significant digits; without a unit.
std::string seconds_text(double seconds);

/// "12.3456": four decimals; without a unit.
std::string milliseconds(double seconds);

/// "12.000us", "2.084ms", "1.500s": times in the style of PyTorch's tables.
std::string table_time(double seconds);

/// Parses "16GiB", "500MB", "1.5 GiB", "1024" as bytes: binary units (KiB, MiB, GiB, TiB), decimal
/// units (kB, MB, GB, TB) and B, in any case; a fraction of a byte is rounded. Throws
/// Error(kUsage), naming `option`, for any other text, for an empty one and for more than 2^63 - 1.
std::int64_t parse_bytes(std::string_view option, std::string_view text);

/// Parses "90s", "10m", "3h50m", "1d", "0.5s" as seconds, to the millisecond. Throws Error(kUsage),
/// naming `option`, for any other text, for zero and for more than 10,000 days.
double parse_duration(std::string_view option, std::string_view text);

/// The text that parse_duration() parses to this duration.
std::string duration_text(double seconds);

/// a + b and a * b of nonnegative numbers. Throw Error(kMemory), naming `what`, if the result is
/// larger than 2^63 - 1.
std::int64_t checked_add(std::int64_t a, std::int64_t b, std::string_view what);
std::int64_t checked_multiply(std::int64_t a, std::int64_t b, std::string_view what);

/// The text without blanks and tabs at its ends.
std::string_view without_blanks(std::string_view text);

/// Reads the number at the start of `text` into `number`, as std::from_chars does: without blanks,
/// a plus sign or hexadecimal digits before it, whatever the locale. Returns where it ends and the
/// error; `number` changes only without one. A seam: not every standard library has std::from_chars
/// for real numbers.
std::from_chars_result read_real(std::string_view text, double& number,
                                 std::chars_format format = std::chars_format::general);

}  // namespace barestep
