#include "session/progress_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "core/units.h"

namespace barestep {
namespace {

constexpr int kMinBar = 10;
constexpr int kMaxBar = 30;

}  // namespace

std::string clock_text(double seconds) {
  // More than a year is a guess of the first steps.
  constexpr double kMaxS = 366.0 * 24 * 3600;
  const auto whole = static_cast<std::int64_t>(std::lround(std::clamp(seconds, 0.0, kMaxS)));
  const std::int64_t minutes = whole / 60;
  if (minutes < 60) return fmt::format("{}:{:02}", minutes, whole % 60);
  return fmt::format("{}:{:02}:{:02}", minutes / 60, minutes % 60, whole % 60);
}

std::string bar_text(std::int64_t done, std::int64_t all, std::vector<std::string> fields,
                     int columns) {
  constexpr int kBrackets = 2;
  fields.insert(fields.begin(), fmt::format("{}/{}", done, all));
  std::string text;
  for (const std::string& field : fields) {
    const std::string more = (text.empty() ? " " : " | ") + field;
    if (kMinBar + kBrackets + std::ssize(text) + std::ssize(more) > columns) break;
    text += more;
  }
  const int room = columns - kBrackets - static_cast<int>(text.size());
  const int width = std::clamp(room, 0, kMaxBar);
  const double share =
      static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(all, 1));
  const int filled = std::clamp(static_cast<int>(share * width), 0, width);
  if (room < 0) return "";
  return fmt::format("[{:=<{}}{: <{}}]{}", "", filled, "", width - filled, text);
}

std::string progress_text(const Progress& progress, int columns) {
  std::vector<std::string> fields = {clock_text(progress.left_s) + " left",
                                     fmt::format("loss {:.4g}", progress.loss)};
  if (progress.epoch > 0) {
    fields.push_back(fmt::format("epoch {}/{}", progress.epoch, progress.epochs));
  }
  if (progress.accuracy) fields.push_back(fmt::format("test {:.2f}%", 100 * *progress.accuracy));
  fields.push_back(number_text(progress.samples_per_s) + " samples/s");
  return bar_text(progress.done, progress.steps, std::move(fields), columns);
}

int terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

bool stderr_has_colors() {
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  if (no_color != nullptr && *no_color != '\0') return false;
  if (terminal == nullptr || std::string_view(terminal) == "dumb") return false;
  return ::isatty(STDERR_FILENO) == 1;
}

}  // namespace barestep
