#include "session/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include "core/plan.h"
#include "core/printer.h"
#include "core/stop_request.h"
#include "core/units.h"
#include "profiler/peaks.h"
#include "session/place.h"
#include "session/run_program.h"

namespace barestep {
namespace {

constexpr const char* kEraseLine = "\r\033[K";

}  // namespace

Console::Console(const TrainConfig& config, const StepPrograms& programs, const Place& place,
                 std::int64_t steps)
    : config_(config),
      programs_(programs),
      place_(place),
      is_terminal_(isatty(STDOUT_FILENO) == 1 && isatty(STDERR_FILENO) == 1),
      summary_(steps) {}

void Console::print(const std::string& text) {
  if (bar_shown_) print_to_stderr(kEraseLine);
  bar_shown_ = false;
  if (!show(text) && !config_.output.writes()) request_stop();
}

void Console::draw_bar(const StepReport& report) {
  constexpr std::int64_t kWidth = 40;
  const std::int64_t done = (report.step + 1) * kWidth / report.steps;
  print_to_stderr(fmt::format("{}[{:=<{}}{: <{}}] {}/{}", kEraseLine, "", done, "", kWidth - done,
                              report.step + 1, counted(report.steps, "step")));
  bar_shown_ = true;
}

void Console::on_step(const StepFigures& step) {
  const StepReport& report = step.report;
  summary_.add(step);
  if (config_.output.show_split) print(place_.split_lines(report.samples));
  const bool last = report.step + 1 == report.steps;
  if (report.step % config_.training.log_every == 0 || last) print_line(step_line(report));
  if (is_terminal_ && !last) draw_bar(report);
}

void Console::on_evaluation(const EvaluationReport& report) {
  print_line(evaluation_line(report));
}

std::optional<double> Console::floor_of_step() const {
  if (programs_.scheme() != nullptr) return std::nullopt;
  const auto peaks = known_peaks(*place_.devices()[0], config_.device.precision);
  if (!peaks) return std::nullopt;
  return floor_s(programs_.train().program, *peaks);
}

std::string Console::text() const {
  return summary_.text(*place_.devices()[0], update_text(programs_), floor_of_step());
}

std::string Outcome::text() const {
  std::string text = plan_table(MemoryPlan(programs_.buffers()), programs_.buffers(), names_);
  if (accuracy_) text += fmt::format("\nTest accuracy: {:.2f}%\n", 100 * *accuracy_);
  return text;
}

}  // namespace barestep
