// Evaluation alone: a trained model over a test set, without gradients and without an optimizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/communicator.h"
#include "core/config.h"
#include "core/statistics.h"
#include "data/dataset.h"
#include "train/runner.h"
#include "train/step.h"
#include "train/trainer.h"
#include "train/weights.h"

namespace barestep {

/// The test set, or all samples where none is split off. For programs that only evaluate, made from
/// the spec of those that train.
StepSpec evaluation_spec_of(StepSpec training);

/// One batch of an evaluation.
struct EvaluatedBatch {
  std::int64_t rank = 0;
  std::int64_t number = 0;  // of its rank
  std::int64_t samples = 0;
  double latency_s = 0;  // from the samples in the host's memory to the loss there
};

/// Of all ranks together.
struct Evaluation {
  std::int64_t batch_size = 0;
  EvaluationReport total{};  // its seconds are those of the slowest rank
  // Of a classifier, row by row: how many samples of class i were taken for class j.
  std::int64_t classes = 0;
  std::vector<std::int64_t> confusion{};
  std::vector<EvaluatedBatch> batches{};  // rank by rank
  Statistics latency_s{};                 // of the batches
  double samples_per_s = 0;
  std::int64_t weight_bytes = 0;      // of the parameters that each batch reads
  std::vector<std::int32_t> found{};  // of a classifier: the class of each sample of this rank
  // What is set by who evaluates the same weights in several precisions: this one's, and the
  // samples of all ranks whose class is not that of the first precision.
  Precision precision = Precision::kFp32;
  std::optional<std::int64_t> changed{};
};

/// The sum over all ranks of a number of each. Every rank calls it; `ranks` may be null for one.
std::int64_t sum_over_ranks(Communicator* ranks, std::int64_t mine);

class Evaluator {
 public:
  /// Allocates what evaluation takes: weights, and the activations of a batch; quantises weights
  /// where the programs compute in int8. `programs` are built
  /// for evaluation_spec_of(). `ranks` joins the ranks that they are built for, each of which
  /// evaluates its share of the samples; it may be null for one. All that is referred to must
  /// outlive the evaluator. Blocks.
  Evaluator(const StepPrograms& programs, Device& device, const Dataset& dataset,
            const FlatWeights& weights, Communicator* ranks = nullptr);
  ~Evaluator();

  /// `warmup` batches that do not count, then every sample once; `on_batch` hears of this rank's.
  /// Throws Error(kDiverged), on every rank, when the loss is not a finite number. Every rank calls
  /// it. Blocks.
  Evaluation run(std::int64_t warmup, const std::function<void(const EvaluatedBatch&)>& on_batch);

  [[nodiscard]] const MemoryPlan& plan() const { return plan_; }

 private:
  class Input;

  void count_classes(const StepProgram& batch, const Addresses& addresses,
                     Evaluation& evaluation) const;
  void add_up(Evaluation& evaluation, EvaluationPart part) const;

  const StepPrograms& programs_;
  Communicator* ranks_;
  MemoryPlan plan_;
  Device* device_;
  Runner runner_;
  std::unique_ptr<Input> input_;
  double target_variance_;
};

}  // namespace barestep
