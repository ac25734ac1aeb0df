#include "console.h"

#include <fmt/format.h>
#include <unistd.h>

#include "core/printer.h"
#include "core/stop_request.h"
#include "core/units.h"
#include "options/options.h"
#include "profiler/peaks.h"
#include "run_end.h"
#include "run_program.h"

namespace barestep {
namespace {

constexpr const char* kEraseLine = "\r\033[K";

}  // namespace

Console::Console(TrainerKind trainer, const TrainConfig& config, std::int64_t steps)
    : program_(name_of(trainer)),
      config_(config),
      is_terminal_(isatty(STDOUT_FILENO) == 1 && isatty(STDERR_FILENO) == 1),
      summary_(steps) {
  const OutputConfig& output = config.output;
  if (!output.metrics.empty()) metrics_.emplace(program_, output.metrics);
  if (!output.tensorboard.empty()) scalars_.emplace(program_, output.tensorboard);
  if (metrics_) {
    metrics_->write([&](OutputFile& file) { file.write(configuration_record(config, trainer)); });
  }
}

void Console::print(const std::string& text) {
  if (bar_shown_) print_to_stderr(kEraseLine);
  bar_shown_ = false;
  if (!show(text) && !config_.output.writes()) ask_to_stop();
}

void Console::draw_bar(const StepReport& report) {
  constexpr std::int64_t kWidth = 40;
  const std::int64_t done = (report.step + 1) * kWidth / report.steps;
  print_to_stderr(fmt::format("{}[{:=<{}}{: <{}}] {}/{}", kEraseLine, "", done, "", kWidth - done,
                              report.step + 1, counted(report.steps, "step")));
  bar_shown_ = true;
}

void Console::show_step(const StepFigures& step) {
  const StepReport& report = step.report;
  summary_.add(step);
  write_record(metrics_record(step, 0));
  if (scalars_) scalars_->write([&](ScalarLog& log) { log.add(step); });
  const bool last = report.step + 1 == report.steps;
  if (report.step % config_.training.log_every == 0 || last) print_line(step_line(report));
  if (is_terminal_ && !last) draw_bar(report);
}

void Console::on_step_of(int rank, const StepFigures& step) {
  write_record(metrics_record(step, rank));
}

void Console::on_evaluation(const EvaluationReport& report) {
  accuracy_ = report.accuracy;
  if (scalars_) scalars_->write([&](ScalarLog& log) { log.add(report); });
  print_line(evaluation_line(report));
}

std::optional<double> Console::floor_of(const StepPrograms& programs, const Device& device) const {
  if (programs.scheme() != nullptr) return std::nullopt;
  const auto peaks = known_peaks(device, config_.device.precision);
  if (!peaks) return std::nullopt;
  return floor_s(programs.train().program, *peaks);
}

void Console::show_summary(const Trainer& trainer, const Device& device, const std::string& more,
                           std::vector<std::string> names) {
  std::string text = fmt::format(
      "\n{}\n{}",
      summary_.text(device, update_text(trainer.programs()), floor_of(trainer.programs(), device)),
      more);
  if (names.empty()) names.emplace_back(device.name());
  text += plan_table(trainer.plan(), trainer.programs().buffers(), names);
  if (accuracy_) text += fmt::format("\nTest accuracy: {:.2f}%\n", 100 * *accuracy_);
  text.pop_back();  // the newline, which print_line() adds
  print_line(text);
}

void Console::write_record(const std::string& record) {
  if (metrics_) metrics_->write([&](OutputFile& file) { file.write(record + "\n"); });
}

void Console::close() {
  const auto failure = first_failure(program_, {[&] {
                                                  if (metrics_) metrics_->close();
                                                },
                                                [&] {
                                                  if (scalars_) scalars_->close();
                                                }});
  if (failure) throw Error(*failure);
}

}  // namespace barestep
