#include "run_end.h"

#include <fmt/format.h>

#include "core/stop_request.h"
#include "run_program.h"
#include "train/weights.h"

namespace barestep {
namespace {

/// Other errors mean that work cannot go on: a rank or a device is lost, or this program is wrong.
bool concerns_an_output(const Error& error) {
  return error.code() == ExitCode::kCannotCreate || error.code() == ExitCode::kInputOutput ||
         error.code() == ExitCode::kDiverged;  // weights that are not worth saving
}

void save_weights_of(const TrainConfig& config, Trainer& trainer) {
  if (config.output.save.empty()) return;
  FlatWeights weights = trainer.weights();
  save_weights(config.output.save, trainer.programs().spec().model, weights);
}

void write_traces(std::string_view program, const Profiling& profiling, const Monitor* monitor,
                  bool tells) {
  const std::string note = profiling.write_files(monitor);
  if (tells && !note.empty()) print_note(program, note);
}

}  // namespace

std::optional<Error> first_failure(std::string_view program,
                                   std::initializer_list<std::function<void()>> works) {
  std::optional<Error> first;
  for (const auto& work : works) {
    try {
      if (work) work();
    } catch (const Error& error) {
      if (!concerns_an_output(error)) throw;
      if (first) {
        print_note(program, error.what());
      } else {
        first = error;
      }
    }
  }
  return first;
}

void run_training(std::unique_ptr<Trainer>& trainer, TrainObserver& observer,
                  std::string_view program, Profiling* profiling, const Monitor* monitor) {
  take_stop_signals(SecondSignal::kEndsAtOnce);
  trainer->stop_when(stop_is_asked_for());
  if (profiling == nullptr) return trainer->run(observer);
  profiling->begin(observer);
  try {
    trainer->run(*profiling);
  } catch (const Error&) {
    trainer.reset();  // waits for what is queued: nothing is recorded any more
    profiling->end();
    const std::string note = profiling->write_files_of_failed_run(monitor);
    if (!note.empty()) print_note(program, note);
    throw;
  }
  profiling->end();
}

std::optional<Error> end_run(std::string_view program, const TrainConfig& config, Trainer& trainer,
                             const RunEnd& end) {
  const bool is_first = trainer.programs().spec().rank == 0;
  const auto save = [&] {
    if (is_first) save_weights_of(config, trainer);
  };
  const auto trace = [&] {
    if (end.profiling == nullptr) return;
    write_traces(program, *end.profiling, end.monitor, is_first);
    end.profiling->require_records();
  };
  return first_failure(program, {save, end.close, end.report, trace});
}

void end_if_stopped(std::string_view program, const TrainConfig& config, const Trainer& trainer) {
  if (!trainer.was_stopped()) return;
  if (!show("")) throw QuietEnd{};  // since stdout is lost, which run_program() tells
  const StepSpec& spec = trainer.programs().spec();
  if (spec.rank == 0) {
    const auto& save = config.output.save;
    print_note(program,
               fmt::format("asked to stop, {}ended after step {}{}",
                           spec.ranks > 1 ? "all ranks " : "", trainer.steps_done() - 1,
                           save.empty() ? "" : fmt::format(" and wrote '{}'", save.string())));
  }
  throw QuietEnd{static_cast<int>(ExitCode::kTryAgain)};
}

}  // namespace barestep
