#include "train/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/units.h"

namespace barestep {
namespace {

/// This rank's samples in a step whose rows begin at `first` of an epoch.
BatchRows own_batch(const StepSpec& spec, std::int64_t first, std::int64_t rows) {
  const Rows own = spec.own_rows(rows);
  if (!spec.input.in_turns) return {.first = first + own.first, .count = own.count};
  return {.first = first + spec.mesh.data_rank(), .stride = spec.mesh.data, .count = own.count};
}

}  // namespace

std::int64_t steps_of(const TrainingConfig& training, const StepSpec& spec) {
  if (training.epochs) return *training.epochs * spec.steps_of_epoch();
  return training.steps.value_or(kDefaultSteps);
}

std::int64_t steps_of_trial(const TrainingConfig& training, const StepSpec& spec,
                            std::int64_t done) {
  constexpr std::int64_t kMin = 4;
  constexpr std::int64_t kMax = 10;
  // At most one step of the trial is the smaller one at the end of an epoch, which does not count.
  if (spec.input.train_rows > 0 && spec.steps_of_epoch() <= kMax) return 0;
  // The last step of the warm-up is one of the chosen program.
  const std::int64_t left =
      first_measured_step(training, steps_of(training, spec), done) - done - 1;
  return left < kMin ? 0 : std::min(left, kMax) / 2 * 2;
}

Schedule::Schedule(const TrainingConfig& training, const StepPrograms& programs, Position start)
    : programs_(programs),
      steps_(steps_of(training, programs.spec())),
      first_(start.steps),
      step_(start.steps) {
  if (step_ > 0 && !start.evaluated) begin_evaluation();
}

std::optional<Batch> Schedule::next() {
  if (evaluating_) return next_evaluation();
  if (step_ == steps_) return std::nullopt;
  const StepPlace place = place_of(step_);
  const bool may_end = programs_.has_common_weights_after(place);
  if (programs_.spec().input.train_rows == 0) {
    return Batch{.program = &programs_.of(place, true), .number = step_++, .may_end = may_end};
  }
  const std::int64_t of_epoch = programs_.spec().steps_of_epoch();
  const std::int64_t in_epoch = step_ % of_epoch;
  const std::int64_t first = in_epoch * programs_.spec().step_rows();
  const bool whole = first + programs_.spec().step_rows() <= programs_.spec().epoch_rows();
  const Batch batch{.program = &programs_.of(place, whole),
                    .epoch = step_ / of_epoch,
                    .number = step_,
                    .first = first,
                    .may_end = may_end};
  ++step_;
  begin_evaluation();
  return batch;
}

void Schedule::renew(Batch& batch) const {
  const bool is_whole = batch.program->rows == programs_.train().rows;
  batch.program = &programs_.of(place_of(batch.number), is_whole);
}

bool Schedule::evaluates_before(std::int64_t step) const {
  return programs_.evaluate() != nullptr &&
         (step % programs_.spec().steps_of_epoch() == 0 || step == steps_);
}

void Schedule::begin_evaluation() {
  if (!evaluates_before(step_)) return;
  evaluating_ = true;
  evaluated_rows_ = 0;
  evaluated_batches_ = 0;
}

std::optional<Batch> Schedule::next_evaluation() {
  const Rows own = programs_.spec().own_test_rows();
  const std::int64_t of_epoch = programs_.spec().steps_of_epoch();
  const bool is_last = evaluated_batches_ + 1 == programs_.evaluations();
  const bool whole = !is_last || programs_.last_evaluate() == nullptr;
  Batch batch{.program = whole ? programs_.evaluate() : programs_.last_evaluate(),
              .evaluates = true,
              .epoch = (step_ - 1) / of_epoch,
              .number = evaluated_batches_++,
              .first = own.first + evaluated_rows_,
              .ends_epoch = step_ % of_epoch == 0};
  evaluated_rows_ += batch.program->rows;
  batch.ends_evaluation = is_last;
  evaluating_ = !batch.ends_evaluation;
  return batch;
}

BatchRows Schedule::rows_of(const Batch& batch) const {
  if (batch.evaluates) {
    // Each rank has a contiguous range of the test set.
    return {.from_test_set = true, .first = batch.first, .count = batch.program->tensors.x.rows};
  }
  BatchRows rows = own_batch(programs_.spec(), batch.first, batch.program->rows);
  rows.epoch = batch.epoch;
  return rows;
}

NextBatch batches_of(Schedule schedule) {
  return [schedule = std::move(schedule)]() mutable -> std::optional<BatchRows> {
    const std::optional<Batch> batch = schedule.next();
    if (!batch) return std::nullopt;
    return schedule.rows_of(*batch);
  };
}

std::vector<bool> needed_rows(const StepSpec& spec, bool shuffle) {
  const auto begin = static_cast<std::size_t>(spec.input.train_rows);
  // Shuffled, each rank reads all rows of the training set sooner or later.
  std::vector<bool> needed(begin, shuffle || spec.mesh.data == 1);
  needed.resize(begin + static_cast<std::size_t>(spec.input.test_rows), false);
  const Rows own = spec.own_test_rows();
  std::fill_n(needed.begin() + spec.input.train_rows + own.first, own.count, true);
  if (begin == 0 || needed.front()) return needed;
  for (std::int64_t first = 0; first < spec.epoch_rows(); first += spec.step_rows()) {
    const std::int64_t rows = std::min(spec.step_rows(), spec.epoch_rows() - first);
    const BatchRows batch = own_batch(spec, first, rows);
    for (std::int64_t i = 0; i < batch.count; ++i) {
      needed[static_cast<std::size_t>((batch.first + i * batch.stride) % spec.input.train_rows)] =
          true;
    }
  }
  return needed;
}

TrainConfig resolve(TrainConfig config, DeviceKind kind, const StepSpec& spec, std::int64_t done) {
  if (config.device.device == "auto" && config.device.devices.empty()) {
    config.device.device = kind == DeviceKind::kCpu ? "cpu" : "cuda";
  }
  if (config.model.layers.empty()) {
    config.model.dim = config.model.dim.value_or(default_dim(kind));
    config.model.depth = config.model.depth.value_or(kDefaultDepth);
  }
  if (const auto& transformer = spec.model.transformer) {
    config.model.heads = transformer->attention.heads;
    config.model.length = transformer->attention.length;
    config.model.ffn = transformer->ffn;
  }
  TrainingConfig& training = config.training;
  config.optimizer = with_numbers(config.optimizer);
  if (training.evaluate_only) {
    training.warmup = training.warmup.value_or(kDefaultWarmup);
    return config;
  }
  const std::int64_t steps = steps_of(training, spec);
  if (training.staleness >= steps) {
    fail(ExitCode::kConfiguration,
         {"--staleness", std::to_string(training.staleness),
          fmt::format("a run of {} would apply no gradient", counted(steps, "step")),
          "give fewer, or more --steps"});
  }
  if (!training.epochs) training.steps = steps;
  training.warmup = warmup_of(training, steps);
  const StepRange profiled = profiled_steps_of(config, steps, done);
  OutputConfig& output = config.output;
  if (done > 0 && profiled.size() < 1) {
    output.profile = false;
    output.trace.clear();
    output.profile_steps.reset();
  }
  if (output.records()) output.profile_steps = profiled;
  if (output.profile) {
    output.sort_by = output.sort_by.value_or(SortBy::kDeviceTotal);
    output.row_limit = output.row_limit.value_or(kDefaultRowLimit);
  }
  return config;
}

}  // namespace barestep
