// The trainer: a configuration, a device and data, run to the end.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/communicator.h"
#include "core/config.h"
#include "core/device.h"
#include "core/plan.h"
#include "data/dataset.h"
#include "train/runner.h"
#include "train/schedule.h"
#include "train/step.h"
#include "train/training_state.h"
#include "train/weights.h"

namespace barestep {

/// What loss scaling did in a step.
struct ScalingReport {
  float used = 0;  // the scale of the step's gradients
  float next = 0;  // that of the next step
  bool skipped = false;

  friend bool operator==(const ScalingReport&, const ScalingReport&) = default;
};

struct StepReport {
  std::int64_t step = 0;
  std::int64_t steps = 0;           // of the whole run
  std::int64_t samples = 0;         // all ranks together
  std::int64_t flops = 0;           // of this process
  float loss = 0;                   // over the rows of all ranks
  std::optional<float> own_loss{};  // over this rank's rows; where there are ranks
  double lr = 0;
  std::optional<ScalingReport> scaling{};  // where there is loss scaling
  bool warmup = false;
  double wall_s = 0;                   // from the step before it, or from its start on the host
  double checkpoint_s = 0;             // that the run paused before it to save its state
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

  /// The run pauses after the last step that was reported, on all ranks after the same one. No work
  /// is queued.
  virtual void on_pause() {}
};

/// The spec of a configuration's programs on a device of this kind, for one rank. `dataset` is null
/// for random data.
StepSpec spec_of(const TrainConfig& config, DeviceKind kind, const Dataset* dataset);

class Trainer {
 public:
  /// Allocates everything there will ever be. `devices` are those of the programs, by index.
  /// `communicator` joins the ranks that the programs are built for, and may be null for one.
  /// Training begins with the weights `loaded`, or, if they are empty, with nn.Linear's
  /// initialisation; with rank 0's, where there are several ranks. `profiler` may be null. Where
  /// there is a `start`, training goes on from there instead: its tensors are rank 0's and have
  /// passed require_state(), its position is every rank's. All other that is referred to must
  /// outlive the trainer. Blocks.
  Trainer(const TrainConfig& config, const StepPrograms& programs, std::vector<Device*> devices,
          Communicator* communicator, const Dataset* dataset, FlatWeights loaded = {},
          StepProfiler* profiler = nullptr, const TrainingState* start = nullptr);
  ~Trainer();

  /// Runs all steps. The host waits for those that --log-every names, and for the last one before
  /// an evaluation, before it queues the next one; of the others it reads the loss while the next
  /// one runs. Evaluations run one by one. Throws Error(kDiverged), naming the step, when a loss is
  /// not a finite number, but for steps that dynamic loss scaling skips, and when the loss scale
  /// has become so small that no gradient is left. Allocates nothing once each program ran in both
  /// slots.
  void run(TrainObserver& observer);

  /// As soon as `asked` is true, the run ends after the current training step; with several ranks,
  /// as soon as it is true on any, all end after the same one. Call it before run(). `asked` must
  /// outlive the trainer.
  void stop_when(const std::atomic<bool>& asked);

  /// Whether the run ended so, with steps left.
  [[nodiscard]] bool was_stopped() const { return was_stopped_; }

  /// Whether --early-stop ends the run, or has ended it: after an evaluation.
  [[nodiscard]] bool ended_early() const;

  /// The run pauses for on_pause() after each `every_steps`-th step of the whole run, where that is
  /// not 0, and soon after `asked` is true on any rank; never after the last step. Call it before
  /// run(). `asked` must outlive the trainer.
  void pause_when(std::int64_t every_steps, const std::atomic<bool>& asked);

  /// Begins to copy what this rank saves of the state (train/training_state.h) to the host, and
  /// returns as soon as steps may go on: on a device with its own memory once a snapshot is
  /// taken there. Call it when the run pauses or has ended, of programs that save their state, when
  /// the previous copy is no longer read. Throws what the device reported.
  void begin_copy();

  /// The bytes_saved() of that copy, which stay until the next one begins. Blocks until they are
  /// there. One thread may call it while this one goes on with run(). Throws Error(kTryAgain) where
  /// the device failed.
  [[nodiscard]] std::span<const std::byte> finish_copy();

  /// The weights as they are now. Blocks.
  [[nodiscard]] FlatWeights weights();

  /// Any flat buffer of the programs (gradients, moments), for inspection. Blocks.
  [[nodiscard]] FlatWeights download(BufferId flat);

  /// Training steps of the whole run, and those done so far.
  [[nodiscard]] std::int64_t steps() const { return schedule_.steps(); }
  [[nodiscard]] std::int64_t steps_done() const { return position_.steps; }
  [[nodiscard]] Position position() const { return position_; }
  [[nodiscard]] const StepPrograms& programs() const { return programs_; }
  [[nodiscard]] const Runner& runner() const { return runner_; }
  [[nodiscard]] const MemoryPlan& plan() const { return plan_; }

 private:
  class Input;

  void initialise(FlatWeights loaded);
  void upload_generator(const TorchGenerator& behind_weights);
  void restore(const TrainingState& start);
  void restore_generator(const TrainingState& start);
  /// Calls use(rank, where it has it, offset in the part) for each rank that holds some of a part.
  template <class Use>
  void for_each_holder(const StatePart& part, const Use& use) const;
  [[nodiscard]] std::vector<std::byte> generator_state();
  /// Of the whole job, whose ranks the programs are built for.
  [[nodiscard]] bool has_ranks() const { return programs_.spec().ranks > 1; }
  /// A buffer of numbers, with what follows the layout.
  [[nodiscard]] Tensor whole(BufferId flat) const;
  void upload(const void* from, const Tensor& to);
  void download(void* to, const Tensor& from);
  void fill_with_zeros(const Tensor& tensor);
  /// Runs one op on a device. Blocks.
  void run_now(const DeviceOp& op, int device);
  void begin_scaling();
  std::optional<ScalingReport> follow_scaling(const Batch& batch, const Addresses& addresses);
  void queue_batch(const Batch& batch, const Batch* next);
  [[nodiscard]] bool is_awaited(const Batch& batch) const;
  /// Waits for the oldest batch that is queued, which is `batch`.
  void finish_batch(const Batch& batch, TrainObserver& observer);
  /// On any rank.
  [[nodiscard]] bool is_wished(StepRequest wish, const Batch& batch,
                               const Addresses& addresses) const;
  [[nodiscard]] bool pauses_after(const Batch& batch) const;
  void pause(TrainObserver& observer);
  void report_step(const Batch& batch, const Addresses& addresses, TrainObserver& observer);
  void report_evaluation(const Batch& batch, const Addresses& addresses, TrainObserver& observer);

  const TrainConfig& config_;
  const StepPrograms& programs_;
  std::vector<Device*> devices_;
  Communicator* communicator_;
  MemoryPlan plan_;
  Runner runner_;
  std::atomic<bool> is_copied_{false};
  // These bring the snapshot to the host; null if the device has no memory of its own.
  std::unique_ptr<Stream> copies_;
  std::unique_ptr<Event> copy_ends_;
  Schedule schedule_;
  std::unique_ptr<Input> input_;
  std::int64_t flops_ = 0, last_batch_flops_ = 0;
  float last_loss_ = 0;
  EvaluationPart evaluation_;
  double target_variance_ = 0;  // of the test set
  Position position_;
  std::int64_t first_measured_ = 0;  // after warm-up
  bool was_stopped_ = false;
  std::int64_t pauses_every_ = 0;
  bool pause_is_wished_ = false;
  std::int64_t paused_at_ = 0;  // steps that were done then
  double paused_s_ = 0;         // since the step before
};

}  // namespace barestep
