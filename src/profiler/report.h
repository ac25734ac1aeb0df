// The text that a run shows its user: step lines, the summary, metrics records. This code only
// formats it; the program prints it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/host.h"
#include "core/statistics.h"
#include "profiler/account.h"
#include "train/evaluator.h"
#include "train/trainer.h"

namespace barestep {

/// Describes the run about to start: model, data and device, in two lines, followed by `more`
/// lines, if any. `division` is the data set's.
std::string run_header(const StepPrograms& programs, const Device& device,
                       const std::string& division = "", const std::string& more = "");

/// `Step 00 | Step time: 0.1234s | Throughput: 518.63 samples/sec | Loss: 1.036895`
std::string step_line(const StepReport& report);

/// `fused, 31.3 bytes a parameter in a step`: how the programs' steps update weights, and how many
/// bytes of parameters, gradients and optimizer state they move.
std::string update_text(const StepPrograms& programs);

/// `Epoch 1/5 | Test loss: 0.3012 | Test accuracy: 91.25% | 0.0123s`
std::string evaluation_line(const EvaluationReport& report);

/// A finished step of one rank, with its account. Trivially copyable, so that ranks can send it;
/// the report's timeline is valid only in its own process.
struct StepFigures {
  StepReport report;
  StepAccount account{};
  double queued_s = 0;  // from the step's start until all its work was queued

  StepFigures() = default;
  /// Computes the figures from the report's timeline.
  explicit StepFigures(const StepReport& step);
};

/// One line of JSON: step, rank, loss at full precision, samples, step_time_s, samples_per_s,
/// queued_s, between_s, checkpoint_s if the run paused before the step, and the parts of the
/// account.
std::string metrics_record(const StepFigures& step, int rank, const Mesh& mesh = {});

/// The time that a rank lost to others since its warm-up, or since the start of an evaluation, as a
/// line of JSON: {"lost_time": {the fields of LostTime}, "rank"}.
std::string lost_time_record(const LostTime& lost, int rank);

/// Collects the steps after warm-up and summarizes them. Allocates during construction, and then
/// not for the first million steps.
class RunSummary {
 public:
  explicit RunSummary(std::int64_t steps);

  void add(const StepFigures& step);

  /// Mean, spread and percentiles of the step time, throughput, GFLOP/s, and the account by phase.
  /// `update` is update_text() of the run's programs. `floor_s` is the minimum time of a step at
  /// the device's peaks, if known.
  [[nodiscard]] std::string text(const Device& device, const std::string& update,
                                 std::optional<double> floor_s = std::nullopt) const;

  /// Needs at least one step after warm-up.
  [[nodiscard]] Statistics step_time_s() const { return statistics_of(wall_s_); }
  /// Of all steps together.
  [[nodiscard]] double samples_per_s() const { return static_cast<double>(samples_) / total_s(); }

 private:
  [[nodiscard]] double total_s() const;

  std::vector<double> wall_s_;
  MeanAccount account_;
  std::int64_t samples_ = 0;
  std::int64_t flops_ = 0;
  std::int64_t warmup_steps_ = 0;
};

/// One run of a sweep.
struct SweepRow {
  std::int64_t batch_size = 0;
  Statistics step_time_s;
  double samples_per_s = 0;  // of all steps after warm-up
};

/// The table of a run with several batch sizes: batch size, step time and throughput of each.
/// Throughput is that of all steps, so it falls if a few steps are long; the median does not.
std::string sweep_table(std::span<const SweepRow> rows);

/// A line of JSON about a batch of an evaluation, without its newline.
std::string evaluation_record(std::int64_t batch_size, const EvaluatedBatch& batch,
                              Precision precision);

/// A line of JSON about a whole evaluation, without its newline.
std::string evaluation_summary_record(const Evaluation& run);

/// Batch size, loss, accuracy or errors, latency and throughput of every run. For runs in several
/// precisions, also the precision, the number of answers that differ from fp32's, and the bytes of
/// the weights.
std::string evaluation_table(std::span<const Evaluation> runs);

/// For a classifier: how the samples of each class were classified, and how many correctly. Empty
/// for other models.
std::string confusion_table(const Evaluation& run);

}  // namespace barestep
