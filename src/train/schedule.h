// The batch of every step: epochs, the smaller last batch, and evaluations in between.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "core/config.h"
#include "data/dataset.h"
#include "train/step.h"

namespace barestep {

struct Batch {
  const StepProgram* program = nullptr;
  bool evaluates = false;
  std::int64_t epoch = 0;   // counted from 0
  std::int64_t number = 0;  // training steps, from 0; evaluation batches, from 0 in each epoch
  std::int64_t first = 0;   // first row, in the epoch's order or the test set
  bool ends_evaluation = false;
  bool ends_epoch = false;  // an evaluation after the last step of an epoch
  bool may_end = true;      // the run may be saved or ended after it
};

/// Loss scaling between two steps.
struct ScalingPosition {
  float scale = 0;
  std::int32_t good_steps = 0;  // since the last change of the scale
  std::int32_t updates = 0;     // steps that were not skipped

  friend bool operator==(const ScalingPosition&, const ScalingPosition&) = default;
};

/// The position of a run between two batches.
struct Position {
  std::int64_t steps = 0;                    // finished training steps
  bool evaluated = false;                    // any evaluation after the last of them is done too
  std::optional<double> best_test_loss{};    // of all evaluations after an epoch so far
  std::int64_t evaluations_since_best = 0;   // such evaluations without improvement
  std::optional<ScalingPosition> scaling{};  // for runs with loss scaling

  friend bool operator==(const Position&, const Position&) = default;
};

/// Batches in the order in which they run.
class Schedule {
 public:
  /// The rest of the run from `start` on.
  Schedule(const TrainingConfig& training, const StepPrograms& programs, Position start = {});

  /// The next batch, or nothing at the end.
  std::optional<Batch> next();

  /// The training steps of the whole run.
  [[nodiscard]] std::int64_t steps() const { return steps_; }

  /// The place of a training step in the run.
  [[nodiscard]] StepPlace place_of(std::int64_t step) const {
    return {.number = step,
            .is_last = step + 1 == steps_ || evaluates_before(step + 1),
            .tries_other = programs_.tries_updates() && (step - first_) % 2 == 1};
  }

  /// Gives a batch of training the program of its step, as the programs have settled on it.
  void renew(Batch& batch) const;

  /// The samples of a batch for this rank.
  [[nodiscard]] BatchRows rows_of(const Batch& batch) const;

 private:
  std::optional<Batch> next_evaluation();
  /// Whether an evaluation follows the step before `step`.
  [[nodiscard]] bool evaluates_before(std::int64_t step) const;
  /// If an evaluation follows the newest training step, it is next.
  void begin_evaluation();

  const StepPrograms& programs_;
  std::int64_t steps_;
  std::int64_t first_ = 0;  // the step with which the rest of the run begins
  std::int64_t step_ = 0;
  std::int64_t evaluated_rows_ = 0;
  std::int64_t evaluated_batches_ = 0;
  bool evaluating_ = false;
};

/// The remaining batches of `schedule`, for this rank's loader. The programs of the schedule must
/// outlive the result.
NextBatch batches_of(Schedule schedule);

/// Which of the train_rows + test_rows samples the programs' rank reads in a run: a bit for each.
std::vector<bool> needed_rows(const StepSpec& spec, bool shuffle);

/// The training steps that a configuration specifies.
std::int64_t steps_of(const TrainingConfig& training, const StepSpec& spec);

/// How many of the first steps after `done` take turns where both ways to update are tried, all of
/// them warm-up; 0 if that has fewer than five steps of the same size.
std::int64_t steps_of_trial(const TrainingConfig& training, const StepSpec& spec,
                            std::int64_t done);

/// The random pauses of a rank, one for each step: uniform from 0 to so many seconds (--jitter-ms).
class Jitter {
 public:
  Jitter(double max_s, int rank)
      : seconds_(0, static_cast<float>(max_s)), random_(static_cast<unsigned>(rank) + 1) {}

  float next_s() { return seconds_(random_); }

 private:
  std::uniform_real_distribution<float> seconds_;
  std::minstd_rand random_;
};

/// The configuration with all values that depend on the device's kind or the data filled in:
/// device, widths, steps, warm-up, weight decay, profiled steps. It describes the same run, even if
/// defaults change. `spec` is the run's. `done` is the number of steps done before; only remaining
/// steps are profiled, if any. Throws what warmup_of() and profiled_steps_of() throw.
TrainConfig resolve(TrainConfig config, DeviceKind kind, const StepSpec& spec,
                    std::int64_t done = 0);

}  // namespace barestep
