// Evaluation only: a trained model on a test set, without gradients or an optimizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/config.h"
#include "core/group.h"
#include "core/statistics.h"
#include "data/dataset.h"
#include "train/evaluation.h"
#include "train/runner.h"
#include "train/step.h"
#include "train/weights.h"

namespace barestep {

/// One batch of an evaluation.
struct EvaluatedBatch {
  std::int64_t rank = 0;
  std::int64_t number = 0;  // counted per rank
  std::int64_t samples = 0;
  double latency_s = 0;  // from samples in host memory to the loss there
};

/// The largest number of classes whose table is counted and shown; a larger table would be too wide
/// to read.
constexpr std::int64_t kMaxClassesInTable = 30;

/// The result of an evaluation, all ranks together.
struct Evaluation {
  std::int64_t batch_size = 0;
  EvaluationReport total{};  // its seconds are the slowest rank's
  // For a classifier, row by row: how many samples of class i were classified as class j. Empty for
  // more than kMaxClassesInTable.
  std::int64_t classes = 0;
  std::vector<std::int64_t> confusion{};
  std::vector<EvaluatedBatch> batches{};  // ordered by rank
  Statistics latency_s{};                 // over the batches
  double samples_per_s = 0;
  std::int64_t weight_bytes = 0;      // of the parameters, which each batch reads
  std::vector<std::int32_t> found{};  // classifier: this rank's samples' classes
  // Set by callers that evaluate the same weights in several precisions: this precision, and the
  // number of samples, over all ranks, whose class differs from that in the first precision.
  Precision precision = Precision::kFp32;
  std::optional<std::int64_t> changed{};
};

/// The sum of `mine` over all ranks. Every rank calls it; `ranks` may be null for a single rank.
std::int64_t sum_over_ranks(Group* ranks, std::int64_t mine);

class Evaluator {
 public:
  /// Allocates weights and the activations of a batch, and quantizes weights if the programs
  /// do. `programs` are built with evaluation_spec_of(). `ranks` connects the ranks
  /// that they are built for, each of which evaluates its share of the samples; it may be null for
  /// a single rank. All arguments must outlive the evaluator. Blocks.
  Evaluator(const StepPrograms& programs, Device& device, const Dataset& dataset,
            const FlatWeights& weights, Group* ranks = nullptr);
  ~Evaluator();

  /// Runs `warmup` batches that are not counted, then every sample once; calls `on_batch` for this
  /// rank's batches. Throws Error(kDiverged), on every rank, if the loss is not finite. Every rank
  /// calls it. Blocks.
  Evaluation run(std::int64_t warmup, const std::function<void(const EvaluatedBatch&)>& on_batch);

  [[nodiscard]] const MemoryPlan& plan() const { return plan_; }

 private:
  class Input;

  void count_classes(const StepProgram& batch, const Addresses& addresses,
                     Evaluation& evaluation) const;

  const StepPrograms& programs_;
  const Dataset& dataset_;
  Group* ranks_;
  MemoryPlan plan_;
  Device* device_;
  Runner runner_;
  std::unique_ptr<Input> input_;
  EvaluationSum sum_;
};

}  // namespace barestep
