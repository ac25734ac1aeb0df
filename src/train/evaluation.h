// What an evaluation adds up, batch by batch and over all ranks: during training and in
// --evaluate-only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/group.h"
#include "data/dataset.h"
#include "train/step.h"

namespace barestep {

struct EvaluationReport {
  std::int64_t epoch = 0;
  std::int64_t epochs = 0;
  std::int64_t samples = 0;
  double loss = 0;                   // mean over the test set
  std::optional<double> accuracy{};  // for a classifier, 0 to 1
  // For targets that are numbers. R2 is the mean over the outputs of 1 - squared errors / squared
  // distances of the targets from their mean, as sklearn's r2_score: an output whose targets are
  // all equal counts as 1 if it is exact, else 0. Nothing for a single sample.
  std::optional<double> r2{}, mean_absolute_error{};
  double seconds = 0;
  bool is_best = false;  // the smallest loss after an epoch so far
};

/// A rank's results for its part of a test set.
struct EvaluationPart {
  // Sums over samples.
  double loss = 0;
  std::vector<double> squared_errors{};  // of each output
  double absolute_error = 0;
  double seconds = 0;
  std::int64_t samples = 0;
  std::int64_t correct = 0;

  /// Begins anew, without freeing memory.
  void clear();

  /// Adds a finished batch.
  void add(const StepProgram& batch, const Addresses& addresses, double batch_s);

  /// The means over all samples, for evaluations by programs like `batch`, with targets of these
  /// variances.
  [[nodiscard]] EvaluationReport report(const StepProgram& batch,
                                        std::span<const double> target_variances) const;
};

/// Evaluations one after another.
class EvaluationSum {
 public:
  /// `dataset` is null for random data, with which nothing is evaluated. `ranks` connects the ranks
  /// that the programs are built for; it may be null for a single rank. The arguments must outlive
  /// the sum.
  EvaluationSum(const StepPrograms& programs, const Dataset* dataset, Group* ranks);

  /// Adds a finished batch of this rank.
  void add(const StepProgram& batch, const Addresses& addresses, double batch_s) {
    part_.add(batch, addresses, batch_s);
  }

  /// This rank's samples so far.
  [[nodiscard]] std::int64_t samples() const { return part_.samples; }

  /// The result over all ranks' samples; its seconds are the slowest rank's. Begins anew. Every
  /// rank calls it. Blocks.
  EvaluationReport finish();

 private:
  const StepPrograms& programs_;
  Group* ranks_;
  std::vector<double> target_variances_;  // of the test set
  EvaluationPart part_{};
};

}  // namespace barestep
