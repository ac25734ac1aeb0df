#include "session/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "core/clock.h"
#include "core/plan.h"
#include "core/printer.h"
#include "core/stop_request.h"
#include "core/units.h"
#include "profiler/checklist.h"
#include "profiler/peaks.h"
#include "session/place.h"
#include "session/run_program.h"

namespace barestep {
Console::Console(const TrainConfig& config, const StepPrograms& programs, const Place& place,
                 const OtherPrograms& others, std::int64_t steps)
    : config_(config),
      others_(others),
      programs_(programs),
      place_(place),
      is_terminal_(isatty(STDOUT_FILENO) == 1 && isatty(STDERR_FILENO) == 1),
      steps_of_epoch_(programs.spec().steps_of_epoch()),
      summary_(steps) {}

void Console::print(const std::string& text) {
  if (bar_shown_) print_to_stderr(kEraseLine);
  bar_shown_ = false;
  if (!show(text) && !config_.output.writes()) request_stop();
}

void Console::print_line(const std::string& line) {
  if (!config_.output.quiet) print(line + "\n");
}

Progress Console::progress_after(const StepReport& report) const {
  Progress progress{.done = report.step + 1, .steps = report.steps};
  progress.samples_per_s = static_cast<double>(report.samples) / mean_step_s_;
  progress.left_s = static_cast<double>(report.steps - progress.done) * mean_step_s_;
  progress.loss = report.loss;
  progress.accuracy = accuracy_;
  if (steps_of_epoch_ > 0) {
    progress.epoch = report.step / steps_of_epoch_ + 1;
    progress.epochs = (report.steps + steps_of_epoch_ - 1) / steps_of_epoch_;
  }
  return progress;
}

void Console::draw_bar(const StepReport& report) {
  // As often as a reader can follow; a line just printed has removed the bar.
  constexpr double kEveryS = 0.1;
  const double now = now_s();
  if (bar_shown_ && now - drawn_s_ < kEveryS) return;
  print_to_stderr(kEraseLine + progress_text(progress_after(report), terminal_columns() - 1));
  drawn_s_ = now;
  bar_shown_ = true;
}

void Console::on_step(const StepFigures& step) {
  const StepReport& report = step.report;
  summary_.add(step);
  // Follows changes within about ten steps.
  constexpr double kNew = 0.1;
  mean_step_s_ =
      mean_step_s_ == 0 ? report.wall_s : (1 - kNew) * mean_step_s_ + kNew * report.wall_s;
  if (config_.output.show_split && !config_.output.quiet) {
    print(place_.split_lines(report.samples));
  }
  const bool last = report.step + 1 == report.steps;
  if (report.step % config_.training.log_every == 0 || last) print_line(step_line(report));
  if (is_terminal_ && !last && !config_.output.quiet) draw_bar(report);
}

void Console::on_evaluation(const EvaluationReport& report) {
  accuracy_ = report.accuracy;
  print_line(evaluation_line(report));
}

std::optional<double> Console::floor_of_step() const {
  if (programs_.scheme() != nullptr || others_.disturb()) return std::nullopt;
  const auto peaks = known_peaks(*place_.devices()[0], config_.device.precision);
  if (!peaks) return std::nullopt;
  return floor_s(programs_.train().program, *peaks);
}

std::string Console::text() const {
  return summary_.text(*place_.devices()[0], update_text(programs_), floor_of_step());
}

std::string lost_note(std::span<const double> lost) {
  std::string ranks;
  double max = 0;
  for (std::size_t rank = 0; rank < lost.size(); ++rank) {
    max = std::max(max, lost[rank]);
    if (lost[rank] <= kNotedShare || lost.size() == 1) continue;
    ranks +=
        fmt::format("{}rank {}: {}", ranks.empty() ? " (" : ", ", rank, percent_text(lost[rank]));
  }
  if (max <= kNotedShare) return "";
  return fmt::format(
      "Other programs took {} of the cores' time{}: times below are not this program's alone\n",
      percent_text(max), ranks.empty() ? "" : ranks + ")");
}

std::string run_checklist(const TrainConfig& config, std::int64_t warmup_steps, std::int64_t steps,
                          std::span<const double> lost) {
  return checklist_line(checklist({.governor = frequency_governor(),
                                   .lost_share = lost.empty() ? 0 : std::ranges::max(lost),
                                   .seed = config.training.seed,
                                   .warmup_steps = warmup_steps,
                                   .steps = steps})) +
         "\n";
}

std::string Outcome::text() const {
  std::string text = plan_table(MemoryPlan(programs_.buffers()), programs_.buffers(), names_);
  if (accuracy_) text += fmt::format("\nTest accuracy: {:.2f}%\n", 100 * *accuracy_);
  return text;
}

}  // namespace barestep
