// What a run prints for its user: step lines, the summary, metrics records. Text only; printing is
// the program's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/host.h"
#include "core/plan.h"
#include "core/statistics.h"
#include "profiler/account.h"
#include "train/evaluator.h"
#include "train/trainer.h"

namespace barestep {

/// What is about to run: model, data, device, in two lines, and `more` lines if there are any.
std::string run_header(const StepPrograms& programs, const Device& device,
                       const std::string& more = "");

/// `Step 00 | Step time: 0.1234s | Throughput: 518.63 samples/sec | Loss: 1.036895`
std::string step_line(const StepReport& report);

/// `fused, 31.3 bytes a parameter in a step`: how the programs' steps update weights, and what they
/// move of parameters, gradients and the optimizer's state.
std::string update_text(const StepPrograms& programs);

/// `Epoch 1/5 | Test loss: 0.3012 | Test accuracy: 91.25% | 0.0123s`
std::string evaluation_line(const EvaluationReport& report);

/// A finished step of one rank, with where its time went. Trivially copyable, so that ranks can
/// send theirs; the report's timeline is this process's only.
struct StepFigures {
  StepReport report;
  StepAccount account{};
  double queued_s = 0;  // from the step's start until the host had queued its work

  StepFigures() = default;
  /// Folds the report's timeline.
  explicit StepFigures(const StepReport& told);
};

/// One line of JSON: step, rank, loss at full precision, step_time_s, samples_per_s, queued_s,
/// between_s, checkpoint_s where the run paused before the step, and the parts of the account.
std::string metrics_record(const StepFigures& step, int rank);

/// What a rank lost to others since its warm-up, as a line of JSON:
/// {"lost_time": {"wall_s", "waited_share", "stolen_s", "busy_threads"}, "rank"}.
std::string lost_time_record(const LostTime& lost, int rank);

/// Collects the steps after warm-up and summarises them. Allocates at construction, and
/// then not for the first million steps.
class RunSummary {
 public:
  explicit RunSummary(std::int64_t steps);

  void add(const StepFigures& step);

  /// Mean, spread and percentiles of the step time, throughput, GFLOP/s, and the account by phase.
  /// `update` is update_text() of the run's programs, `floor_s` the least seconds that a step takes
  /// at the device's peaks, where they are known.
  [[nodiscard]] std::string text(const Device& device, const std::string& update,
                                 std::optional<double> floor_s = std::nullopt) const;

  /// There must be a step after warm-up.
  [[nodiscard]] Statistics step_time_s() const { return statistics_of(wall_s_); }
  /// Of a whole step: the most that any has.
  [[nodiscard]] std::int64_t step_samples() const { return step_samples_; }

 private:
  [[nodiscard]] double total_s() const;

  std::vector<double> wall_s_;
  MeanAccount account_;
  std::int64_t samples_ = 0;
  std::int64_t step_samples_ = 0;
  std::int64_t flops_ = 0;
  std::int64_t warmup_steps_ = 0;
};

/// One run of a sweep.
struct SweepRow {
  std::int64_t batch_size = 0;
  std::int64_t step_samples = 0;  // more than a batch with micro-steps
  Statistics step_time_s;
};

/// The table of a run with several batch sizes: batch size, step time and throughput of each. Both
/// are of the median step, so that one is the samples of a step over the other.
std::string sweep_table(std::span<const SweepRow> rows);

/// A line of JSON about a batch of an evaluation, without its newline; it names the precision where
/// there is one.
std::string evaluation_record(std::int64_t batch_size, const EvaluatedBatch& batch,
                              std::optional<Precision> precision = std::nullopt);

/// A line of JSON about an evaluation in one of several precisions, without its newline.
std::string evaluation_summary_record(const Evaluation& run);

/// Batch size, loss, accuracy or errors, latency and throughput of every run. Of runs in several
/// precisions also these, the answers that are not fp32's, and the bytes of the weights.
std::string evaluation_table(std::span<const Evaluation> runs);

/// Of a classifier: what samples of each class were taken for, and how many of them are right.
/// Empty for others.
std::string confusion_table(const Evaluation& run);

}  // namespace barestep
