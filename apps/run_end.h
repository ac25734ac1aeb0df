// How a run of training goes, and how it ends, so that nothing it made is lost.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>

#include "core/config.h"
#include "core/error.h"
#include "profiling.h"
#include "train/trainer.h"

namespace barestep {

/// Does each of `works` in turn, even after one that could not write its output. Returns the first
/// such failure; the others are notes of `program` on stderr. Throws any other error at once.
std::optional<Error> first_failure(std::string_view program,
                                   std::initializer_list<std::function<void()>> works);

/// Runs all steps in this process, told to `observer` and profiled where `profiling` is not null,
/// until they are done or a signal asks to stop. Where that fails, the trainer is ended, and what
/// became of the trace is a note of `program` on stderr.
void run_training(std::unique_ptr<Trainer>& trainer, TrainObserver& observer,
                  std::string_view program, Profiling* profiling, const Monitor* monitor);

/// What there is to do once the weights are saved, in this order.
struct RunEnd {
  std::function<void()> close{};   // metrics and event files
  std::function<void()> report{};  // to stdout
  // Traces, with counters of what `monitor` saw; either may be null.
  const Profiling* profiling = nullptr;
  const Monitor* monitor = nullptr;
};

/// Ends a run: the only place that knows the order, which starts with --save, written by rank 0.
/// Returns and throws as first_failure() does; last throws Error(kBug) where a profile lacks the
/// record of a node. Blocks.
std::optional<Error> end_run(std::string_view program, const TrainConfig& config, Trainer& trainer,
                             const RunEnd& end);

/// Where the run was asked to stop, throws QuietEnd with 75, and rank 0 prints a note of `program`
/// on stderr; where stdout is lost, which may be why it stopped, leaves the code to run_program().
void end_if_stopped(std::string_view program, const TrainConfig& config, const Trainer& trainer);

}  // namespace barestep
