// Which batch every step runs: epochs, the smaller last batch, and evaluation in between.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/config.h"
#include "data/loader.h"
#include "train/step.h"

namespace barestep {

struct Batch {
  const StepProgram* program = nullptr;
  bool evaluates = false;
  std::int64_t epoch = 0;   // from 0
  std::int64_t number = 0;  // of training steps, from 0; of evaluation batches, per epoch
  std::int64_t first = 0;   // first row: in the epoch's order, or in the test set
  bool ends_evaluation = false;
};

/// Loss scaling between two steps.
struct ScalingPosition {
  float scale = 0;
  std::int32_t good_steps = 0;  // since the scale last changed
  std::int32_t updates = 0;     // steps that were not skipped

  friend bool operator==(const ScalingPosition&, const ScalingPosition&) = default;
};

/// Where a run is, between two batches.
struct Position {
  std::int64_t steps = 0;                    // training steps done
  bool evaluated = false;                    // if an evaluation follows the last of them, that too
  std::optional<double> best_test_loss{};    // of all evaluations so far
  std::int64_t evaluations_since_best = 0;   // that were no better
  std::optional<ScalingPosition> scaling{};  // of runs with loss scaling

  friend bool operator==(const Position&, const Position&) = default;
};

/// Batches in the order in which they run.
class Schedule {
 public:
  /// What is left of the run at `start`.
  Schedule(const TrainingConfig& training, const StepPrograms& programs, Position start = {});

  /// The next batch, or nothing at the end.
  std::optional<Batch> next();

  /// Training steps of the whole run.
  [[nodiscard]] std::int64_t steps() const { return steps_; }

  /// The samples of a batch that this rank takes.
  [[nodiscard]] BatchRows rows_of(const Batch& batch) const;

 private:
  std::optional<Batch> next_evaluation();
  [[nodiscard]] std::int64_t batches_of_epoch() const;
  [[nodiscard]] const StepProgram& whole_step() const;
  /// If an evaluation follows the newest training step, that is what comes next.
  void begin_evaluation();

  const StepPrograms& programs_;
  std::int64_t steps_;
  std::int64_t step_ = 0;
  std::int64_t evaluated_rows_ = 0;
  std::int64_t evaluated_batches_ = 0;
  bool evaluating_ = false;
};

/// The batches that are still to come in `schedule`, as the loader of this rank asks for them. The
/// programs of the schedule must outlive the result.
NextBatch batches_of(Schedule schedule);

/// Optimizer steps a configuration asks for, given the rows of an epoch (0: random data).
std::int64_t steps_of(const TrainingConfig& training, std::int64_t epoch_rows,
                      std::int64_t batch_size);

/// The configuration with what depends on the device's kind and on the data put in: device, widths,
/// steps, warm-up, weight decay, profiled steps. It asks for the same run, whatever the defaults.
/// `spec` is that of the run, `done` what it has done already: steps that are left to profile are
/// profiled, and nothing where none are. Throws what warmup_of() and profiled_steps_of() throw.
TrainConfig resolve(TrainConfig config, DeviceKind kind, const StepSpec& spec,
                    std::int64_t done = 0);

}  // namespace barestep
