// The trainer: a configuration, a device and data, run to the end.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/communicator.h"
#include "core/config.h"
#include "core/device.h"
#include "core/plan.h"
#include "data/dataset.h"
#include "train/runner.h"
#include "train/schedule.h"
#include "train/step.h"
#include "train/weights.h"

namespace barestep {

struct StepReport {
  std::int64_t step = 0;
  std::int64_t steps = 0;           // of the whole run
  std::int64_t samples = 0;         // all ranks together
  std::int64_t flops = 0;           // of this process
  float loss = 0;                   // over the rows of all ranks
  std::optional<float> own_loss{};  // over this rank's rows; where there are ranks
  double lr = 0;
  bool warmup = false;
  double wall_s = 0;                   // from the step before it, or from its start on the host
  const Timeline* timeline = nullptr;  // whose newest step it is, until the report was told
};

struct EvaluationReport {
  std::int64_t epoch = 0;
  std::int64_t epochs = 0;
  std::int64_t samples = 0;
  double loss = 0;                   // mean over the test set
  std::optional<double> accuracy{};  // of a classifier, 0 to 1
  // Of numbers. R2 is 1 - squared errors / squared distances of the targets from the means of their
  // columns, all columns together; there is none where all targets of a column are equal.
  std::optional<double> r2{}, mean_absolute_error{};
  double seconds = 0;
};

/// What a rank found in its part of a test set.
struct EvaluationPart {
  // Sums over samples.
  double loss = 0;
  double squared_error = 0;
  double absolute_error = 0;
  double seconds = 0;
  std::int64_t samples = 0;
  std::int64_t correct = 0;

  /// A batch of it, which is done.
  void add(const StepProgram& batch, const Addresses& addresses, double batch_s);

  /// Of all parts together: the means, for evaluations by programs such as `batch` of targets with
  /// such a variance.
  [[nodiscard]] EvaluationReport report(const StepProgram& batch, double target_variance) const;
};

/// What all ranks found in all of it; the seconds are those of the slowest. Every rank calls it.
/// Blocks.
EvaluationPart sum_of_ranks(Communicator& ranks, const EvaluationPart& mine);

/// Told what happens, between steps.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void on_step(const StepReport& report) = 0;
  virtual void on_evaluation(const EvaluationReport& report) = 0;

  /// A batch is done, of training or of evaluation; comes before what it has to report.
  virtual void on_batch() {}
};

/// The spec of a configuration's programs on a device of this kind, for one rank. `dataset` is null
/// for random data.
StepSpec spec_of(const TrainConfig& config, DeviceKind kind, const Dataset* dataset);

class Trainer {
 public:
  /// Allocates everything there will ever be. `devices` are those of the programs, by index.
  /// `communicator` joins the ranks that the programs are built for, and may be null for one.
  /// Training begins with the weights `loaded`, or, if they are empty, with nn.Linear's
  /// initialisation; with rank 0's, where there are several ranks. `profiler` may be null. All that
  /// is referred to must outlive the trainer. Blocks.
  Trainer(const TrainConfig& config, const StepPrograms& programs, std::vector<Device*> devices,
          Communicator* communicator, const Dataset* dataset, FlatWeights loaded = {},
          StepProfiler* profiler = nullptr);
  ~Trainer();

  /// Runs all steps. The host waits for those that --log-every names, and for the last one before
  /// an evaluation, before it queues the next one; of the others it reads the loss while the next
  /// one runs. Evaluations run one by one. Throws Error(kDiverged), naming the step, when a loss is
  /// not a finite number. Allocates nothing once each program ran in both slots.
  void run(TrainObserver& observer);

  /// As soon as `asked` is true, the run ends after the current training step; with several ranks,
  /// as soon as it is true on any, all end after the same one. Call it before run(). `asked` must
  /// outlive the trainer.
  void stop_when(const std::atomic<bool>& asked);

  /// Whether the run ended so, with steps left.
  [[nodiscard]] bool was_stopped() const { return was_stopped_; }

  /// The weights as they are now. Blocks.
  [[nodiscard]] FlatWeights weights();

  /// Any flat buffer of the programs (gradients, moments), for inspection. Blocks.
  [[nodiscard]] FlatWeights download(BufferId flat);

  /// Training steps of the whole run, and those done so far.
  [[nodiscard]] std::int64_t steps() const { return schedule_.steps(); }
  [[nodiscard]] std::int64_t steps_done() const { return steps_done_; }
  [[nodiscard]] const StepPrograms& programs() const { return programs_; }
  [[nodiscard]] const Runner& runner() const { return runner_; }
  [[nodiscard]] const MemoryPlan& plan() const { return plan_; }

 private:
  class Input;

  void initialise(FlatWeights loaded);
  void upload_generator(const TorchGenerator& behind_weights);
  /// A buffer of numbers, with what it has behind the layout.
  [[nodiscard]] Tensor whole(BufferId flat) const;
  void upload(const void* from, const Tensor& to);
  void fill_with_zeros(const Tensor& tensor);
  void queue_batch(const Batch& batch, const Batch* next);
  [[nodiscard]] bool is_awaited(const Batch& batch) const;
  /// Waits for the oldest batch that is queued, which is `batch`.
  void finish_batch(const Batch& batch, TrainObserver& observer);
  [[nodiscard]] bool is_asked_to_stop(const Batch& batch, const Addresses& addresses) const;
  void report_step(const Batch& batch, const Addresses& addresses, TrainObserver& observer);
  void report_evaluation(const Batch& batch, const Addresses& addresses, TrainObserver& observer);

  const TrainConfig& config_;
  const StepPrograms& programs_;
  std::vector<Device*> devices_;
  Communicator* communicator_;
  MemoryPlan plan_;
  Runner runner_;
  Schedule schedule_;
  std::unique_ptr<Input> input_;
  std::int64_t flops_ = 0, last_batch_flops_ = 0;
  float last_loss_ = 0;
  EvaluationPart evaluation_;
  double target_variance_ = 0;  // of the test set
  std::int64_t steps_done_ = 0;
  bool was_stopped_ = false;
};

}  // namespace barestep
