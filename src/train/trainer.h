// The trainer: runs a configuration on a device with data to the end.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/plan.h"
#include "core/transport.h"
#include "data/dataset.h"
#include "train/evaluation.h"
#include "train/runner.h"
#include "train/schedule.h"
#include "train/step.h"
#include "train/training_state.h"
#include "train/verification.h"
#include "train/weights.h"

namespace barestep {

/// The loss scaling of a step.
struct ScalingReport {
  float used = 0;  // the scale of this step's gradients
  float next = 0;  // the scale of the next step
  bool skipped = false;

  friend bool operator==(const ScalingReport&, const ScalingReport&) = default;
};

struct StepReport {
  std::int64_t step = 0;
  std::int64_t steps = 0;           // in the whole run
  std::int64_t samples = 0;         // all ranks together
  std::int64_t flops = 0;           // in this process
  float loss = 0;                   // over all ranks' rows
  std::optional<float> own_loss{};  // over this rank's rows; with several ranks
  double lr = 0;
  std::optional<ScalingReport> scaling{};  // with loss scaling
  std::optional<Update> update{};          // where both are tried
  bool warmup = false;
  double wall_s = 0;                   // since the previous step, or since its start on the host
  double checkpoint_s = 0;             // pause before it to save the run's state
  const Timeline* timeline = nullptr;  // its newest step is this one; valid during the report
};

/// The step times of both ways to update, in seconds; of the slowest rank.
struct UpdateTimes {
  double fused_s = 0;
  double separate_s = 0;

  /// A fused update has to be clearly faster.
  [[nodiscard]] Update choice() const {
    return fused_s < 0.98 * separate_s ? Update::kFused : Update::kSeparate;
  }
};

/// Receives events between steps.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void on_step(const StepReport& /*report*/) {}
  virtual void on_evaluation(const EvaluationReport& /*report*/) {}

  /// Called once where programs try both ways to update, with the same times on every rank. The
  /// receiver settles the programs.
  virtual void on_updates_tried(const UpdateTimes& /*times*/) {}

  /// Called after each batch, of training or of evaluation, before its report.
  virtual void on_batch() {}

  /// Called when the run pauses after the last reported step; all ranks pause after the same one.
  /// No work is queued.
  virtual void on_pause() {}
};

/// Throws Error(kConfiguration) if ranks that have the same parameters start from different values.
/// Every rank calls it with its own. Blocks.
void require_equal_weights(Group& ranks, Mesh mesh, const FlatWeights& weights);

class Trainer {
 public:
  /// Allocates all memory of the run. `devices` are those of the programs, by index. `connection`
  /// joins the ranks or devices that the programs are built for.
  /// Training starts with the weights `loaded`, or, if they are empty, with nn.Linear's
  /// initialization. Loaded weights are those of the whole model, on rank 0. `profiler` may be
  /// null. If `start` is given, training resumes from there instead: its tensors are on rank 0 and
  /// have passed require_state(); its position is on every rank. All other arguments must outlive
  /// the trainer. Blocks.
  Trainer(const TrainConfig& config, const StepPrograms& programs, std::vector<Device*> devices,
          const Connection& connection, const Dataset* dataset, FlatWeights loaded = {},
          StepProfiler* profiler = nullptr, const TrainingState* start = nullptr);
  ~Trainer();

  /// Runs all steps. The host waits for a step before queueing the next one if --log-every selects
  /// it or if an evaluation follows; otherwise it reads a step's loss while the next one runs.
  /// Evaluations run one at a time. If samples cannot be read, the run ends as if it were stopped
  /// after the last step that has all of its own; ranks that cannot end together throw. Throws
  /// Error(kDiverged), naming the step, if a loss is not finite, except in steps that dynamic loss
  /// scaling skips, and if the loss scale has become so small that no gradient survives; and
  /// Error(kCorrupted) as Verification does. Allocates
  /// nothing once each program has run in both slots.
  void run(TrainObserver& observer);

  /// Once `requested` is true, the run ends after the current training step. With several ranks,
  /// once it is true on any, all end after the same step. Call before run(). `requested` must
  /// outlive the trainer.
  void stop_when(const std::atomic<bool>& requested);

  /// Whether the run ended this way, with steps left.
  [[nodiscard]] bool was_stopped() const { return was_stopped_; }

  /// Why this process could not read samples, if that ended the run; else null.
  [[nodiscard]] const std::exception_ptr& failure() const;

  /// Whether --early-stop has ended the run, or will; decided after an evaluation.
  [[nodiscard]] bool ended_early() const;

  /// The run pauses for on_pause() after each `every_steps`-th step of the whole run, unless that
  /// is 0, and soon after `requested` is true on any rank; after the evaluation that follows the
  /// step, if one does, and never after the last step. Call before run(). `requested` must outlive
  /// the trainer.
  void pause_when(std::int64_t every_steps, const std::atomic<bool>& requested);

  /// Starts copying this rank's part of the state (train/training_state.h) to the host, and returns
  /// as soon as steps may continue; on a device with its own memory, once a snapshot exists there.
  /// Call when the run pauses or has ended and the previous copy is no longer read, for programs
  /// that save their state. Throws errors that the device reported.
  void begin_copy();

  /// The bytes_saved() of that copy, valid until the next copy begins. Blocks until they are
  /// complete. One other thread may call it while this one continues with run(). Throws
  /// Error(kTryAgain) if the device failed.
  [[nodiscard]] std::span<const std::byte> finish_copy();

  /// Whether this process has the whole model; else ranks share it.
  [[nodiscard]] bool has_all_weights() const;

  /// Hands over the current weights of the whole model, one parameter after another in this order.
  /// Without has_all_weights(), every rank calls it and gets them. Blocks.
  void visit_weights(std::span<const ParameterId> order, const UseOfWeights& use);

  /// All of them at once; by every rank, as above. Blocks.
  [[nodiscard]] FlatWeights weights();

  /// Any flat buffer of the programs (gradients, moments), of all stages, for inspection. Blocks.
  [[nodiscard]] FlatWeights download(BufferId flat);

  /// After how many steps of the run --verify-every last found nothing; 0: it has not.
  [[nodiscard]] std::int64_t verified_steps() const {
    return verification_ ? verification_->verified_steps() : 0;
  }

  /// The training steps of the whole run, and those done so far.
  [[nodiscard]] std::int64_t steps() const { return schedule_.steps(); }
  [[nodiscard]] std::int64_t steps_done() const { return position_.steps; }
  [[nodiscard]] Position position() const { return position_; }
  [[nodiscard]] const StepPrograms& programs() const { return programs_; }
  [[nodiscard]] const Runner& runner() const { return runner_; }
  [[nodiscard]] const MemoryPlan& plan() const { return plan_; }

 private:
  class Input;

  void set_state(const TrainingState* start, FlatWeights loaded);
  void initialize(FlatWeights loaded);
  /// Its weights are nn.Linear's, drawn with the seed after the run's; no checkpoint has them.
  void initialize_teacher();
  /// The ranges of the parameters of a stage that this rank holds.
  [[nodiscard]] std::vector<FlatRange> held_of(const HeldStage& stage) const;
  /// A rank that has a part of the model, by itself or with its data group.
  struct HolderOfWeights {
    Mesh place;
    Parameters parameters;
  };
  /// The numbers of one of its parameters, on every rank. Blocks.
  void collect_part(const HolderOfWeights& holder, ParameterId id, std::span<float> part);
  /// Numbers of the flat buffers of parameters of this process, which are a stage's. Blocks.
  void download_parameters(std::int64_t first, std::span<float> numbers);
  void upload_generator(const TorchGenerator& behind_weights);
  void restore(const TrainingState& start);
  void restore_generator(const TrainingState& start);
  /// Copies what this rank holds of a tensor of the state from all its numbers to the device.
  void upload_held(const StatePart& part, std::span<const float> whole);
  /// This rank's parameters of `whole` ones, which rank 0 has; by every rank.
  [[nodiscard]] FlatWeights part_of_loaded(FlatWeights whole);
  [[nodiscard]] std::vector<std::byte> generator_state();
  /// Whether the job for which the programs are built has several ranks, which are connected.
  [[nodiscard]] bool has_ranks() const {
    return ranks_ != nullptr && programs_.spec().mesh.ranks() > 1;
  }
  [[nodiscard]] int device_with(const Tensor& tensor) const;
  /// The whole buffer, including padding.
  [[nodiscard]] Tensor whole(BufferId flat) const;
  void upload(const void* from, const Tensor& to);
  void download(void* to, const Tensor& from);
  void fill_with_zeros(const Tensor& tensor);
  /// Runs one op on a device. Blocks.
  void run_now(const DeviceOp& op, int device);
  void begin_scaling();
  /// overflow_remedy() for this run.
  [[nodiscard]] std::string remedy(std::string other) const;
  std::optional<ScalingReport> follow_scaling(const Batch& batch, const Addresses& addresses);
  void queue_batch(const Batch& batch, const Batch* next);
  [[nodiscard]] bool watches(const Batch& batch) const {
    return verification_ && verification_->watches(batch);
  }
  [[nodiscard]] bool is_awaited(const Batch& batch) const;
  /// Waits for the oldest queued batch, which is `batch`.
  void finish_batch(const Batch& batch, TrainObserver& observer);
  /// Whether any rank has requested it.
  [[nodiscard]] bool is_requested(StepRequest request, const Batch& batch,
                                  const Addresses& addresses) const;
  [[nodiscard]] bool pauses_after(const Batch& batch) const;
  void pause(TrainObserver& observer);
  void report_step(const Batch& batch, const Addresses& addresses, TrainObserver& observer);
  /// Adds the time of a step of the trial, and ends it after the last one.
  void time_update(const Batch& batch, TrainObserver& observer);
  void report_evaluation(const Batch& batch, const Addresses& addresses, TrainObserver& observer);

  const TrainConfig& config_;
  const StepPrograms& programs_;
  std::vector<Device*> devices_;
  Group* ranks_;            // may be null
  const Dataset* dataset_;  // may be null
  MemoryPlan plan_;
  Runner runner_;
  std::atomic<bool> is_copied_{false};
  // For copying the snapshot to the host; null if the device has no memory of its own.
  std::unique_ptr<Stream> copies_;
  std::unique_ptr<Event> copy_ends_;
  Position position_;
  Schedule schedule_;
  std::unique_ptr<Input> input_;
  std::map<const StepProgram*, std::int64_t> flops_;
  std::optional<float> last_loss_{};  // of the newest step in this process
  EvaluationSum evaluation_;
  std::optional<Verification> verification_;
  std::int64_t first_measured_;  // the first after warm-up
  std::int64_t trial_end_;       // the first step after those that try both updates; 0 without
  std::vector<double> separate_s_, fused_s_;  // times of their steps
  bool was_stopped_ = false;
  std::int64_t pauses_every_ = 0;
  bool stop_is_requested_ = false;
  bool pause_is_requested_ = false;
  std::int64_t paused_at_;  // steps done at the last pause
  double paused_s_ = 0;     // since the previous step
};

}  // namespace barestep
