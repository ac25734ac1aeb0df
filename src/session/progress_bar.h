// The progress bar of a run on a terminal, and what standard error may show there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace barestep {

/// How far a run is.
struct Progress {
  std::int64_t done = 0;  // steps
  std::int64_t steps = 0;
  double samples_per_s = 0;
  double left_s = 0;
  double loss = 0;
  std::int64_t epoch = 0;  // from 1; 0 without epochs
  std::int64_t epochs = 0;
  std::optional<double> accuracy{};  // of the last test, 0 to 1
};

/// "0:07", "12:34", "3:00:00", rounded to whole seconds.
std::string clock_text(double seconds);

/// One line of at most `columns` characters: a bar, then what fits of "DONE/ALL" and the fields, in
/// this order.
std::string bar_text(std::int64_t done, std::int64_t all, std::vector<std::string> fields,
                     int columns);

/// The same of a run: the time left, the loss, the epoch, the last test's accuracy and the rate.
std::string progress_text(const Progress& progress, int columns);

/// Removes the line that the cursor is in.
constexpr const char* kEraseLine = "\r\033[K";

/// The terminal's width; 80 if it does not say.
int terminal_columns();

/// Whether colors help on standard error: it is a terminal, it is not dumb (TERM), and NO_COLOR is
/// unset or empty (no-color.org).
bool stderr_has_colors();

}  // namespace barestep
